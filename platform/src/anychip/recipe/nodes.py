"""A recipe as a tree of values that remember where they were written. Knows YAML's kinds; knows no key of a recipe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from anychip.recipe.origins import Origin

Path: TypeAlias = "tuple[str | int, ...]"
Value: TypeAlias = "str | int | float | bool | None"


@dataclass(frozen=True)
class Scalar:
    """One value; `text` is what was written, before it became a number or a boolean."""

    value: Value
    origin: Origin
    text: str = ""
    is_plain: bool = False  # written without quotes, so that it may become a number


@dataclass(frozen=True)
class Items:
    """A list."""

    items: tuple[Node, ...]
    origin: Origin


@dataclass(frozen=True)
class Entry:
    key_origin: Origin
    node: Node


@dataclass(frozen=True)
class Table:
    """A mapping. `resets`: it stands after a null, so what lies below it is not merged into it."""

    entries: Mapping[str, Entry]
    origin: Origin
    resets: bool = field(default=False)


Node: TypeAlias = "Scalar | Items | Table"


def dotted(path: Path) -> str:
    """`('ops', 'overrides', 0, 'op')` as `ops.overrides[0].op`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def children(node: Node) -> Iterator[tuple[str | int, Node]]:
    if isinstance(node, Table):
        yield from ((key, entry.node) for key, entry in node.entries.items())
    elif isinstance(node, Items):
        yield from enumerate(node.items)


def find(node: Node, path: Path) -> Node | None:
    """The node at a path, or None."""
    for part in path:
        below = dict(children(node)).get(part)
        if below is None:
            return None
        node = below
    return node


def nearest(node: Node, path: Path) -> Node:
    """The node at a path, or the deepest one above it that was written down."""
    for part in path:
        below = dict(children(node)).get(part)
        if below is None:
            return node
        node = below
    return node


def remove(node: Node, path: Path) -> Node:
    """The tree without the node at a path."""
    if not path:
        raise ValueError("the root can't be removed")
    first, rest = path[0], path[1:]
    if isinstance(node, Table):
        entries = dict(node.entries)
        entry = entries.get(str(first))
        if entry is None:
            return node
        if rest:
            entries[str(first)] = Entry(entry.key_origin, remove(entry.node, rest))
        else:
            del entries[str(first)]
        return Table(entries, node.origin, node.resets)
    if isinstance(node, Items) and isinstance(first, int) and first < len(node.items):
        kept = list(node.items)
        kept[first : first + 1] = [remove(kept[first], rest)] if rest else []
        return Items(tuple(kept), node.origin)
    return node


__all__ = [
    "Entry",
    "Items",
    "Node",
    "Path",
    "Scalar",
    "Table",
    "Value",
    "children",
    "dotted",
    "find",
    "nearest",
    "remove",
]
