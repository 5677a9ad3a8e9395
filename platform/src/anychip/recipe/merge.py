"""Lay one recipe over another: mappings merge, lists replace, null resets. Knows no key of a recipe."""

from __future__ import annotations

from collections.abc import Iterator

from anychip.recipe.nodes import Entry, Items, Node, Path, Scalar, Table, children
from anychip.recipe.origins import Origin


def merge(base: Node, over: Node) -> Node:
    """What `over` says, and below it what `base` says.

    It is associative: a mapping laid over what is no mapping remembers that it resets what lies further below.
    """
    if not isinstance(over, Table) or over.resets:
        return over
    if not isinstance(base, Table):
        return Table(over.entries, over.origin, resets=True)
    entries = dict(base.entries)
    for key, entry in over.entries.items():
        below = entries.get(key)
        entries[key] = entry if below is None else Entry(entry.key_origin, merge(below.node, entry.node))
    # a mapping stands where a file wrote it, even if a variable or --set added a key to it
    origin = over.origin if over.origin.kind == "file" else base.origin
    return Table(entries, origin, base.resets)


def drop_ignored(node: Node) -> Node:
    """The tree without the keys that start with `x-`, which are the user's own."""
    if isinstance(node, Table):
        kept = {k: Entry(e.key_origin, drop_ignored(e.node)) for k, e in node.entries.items() if not k.startswith("x-")}
        return Table(kept, node.origin, node.resets)
    if isinstance(node, Items):
        return Items(tuple(drop_ignored(item) for item in node.items), node.origin)
    return node


def is_null(node: Node) -> bool:
    return isinstance(node, Scalar) and node.value is None


def drop_nulls(node: Node) -> Node:
    """The tree without the keys that a null resets to their default."""
    if isinstance(node, Table):
        kept = {k: Entry(e.key_origin, drop_nulls(e.node)) for k, e in node.entries.items() if not is_null(e.node)}
        return Table(kept, node.origin, node.resets)
    if isinstance(node, Items):
        return Items(tuple(drop_nulls(item) for item in node.items), node.origin)
    return node


def resets(node: Node, path: Path = ()) -> Iterator[tuple[Path, Origin]]:
    """Where a null stands for a key's value."""
    for part, below in children(node):
        if isinstance(node, Table) and is_null(below):
            yield (*path, part), below.origin
        else:
            yield from resets(below, (*path, part))


__all__ = ["drop_ignored", "drop_nulls", "is_null", "merge", "resets"]
