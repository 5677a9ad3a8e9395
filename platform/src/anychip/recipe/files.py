"""Read a recipe's file and the files that it extends into one tree. Knows files and `extends`; knows no other key."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path as FilePath

from anychip.recipe.check import found
from anychip.recipe.errors import Problems, did_you_mean
from anychip.recipe.merge import is_null, merge
from anychip.recipe.nodes import Items, Node, Scalar, Table
from anychip.recipe.origins import Origin
from anychip.recipe.parse import parse

_LARGEST_BYTES = 1 << 20


def read_tree(path: str, problems: Problems) -> Node | None:
    """The tree of a recipe laid over the ones that it extends, in order; None when one of them can't be read."""
    return _read(os.path.normpath(path), (), Origin("file", path, 1, 1), problems)


def _read(path: str, chain: tuple[str, ...], named_at: Origin, problems: Problems) -> Node | None:
    identity = os.path.realpath(path)
    if identity in (os.path.realpath(p) for p in chain):
        problems.add_fatal(named_at, f"extends: a cycle, {' -> '.join((*chain, path))}")
        return None
    text = _text(path, chain, named_at, problems)
    tree = None if text is None else parse(text, path, problems)
    if text is None or (tree is None and problems.is_fatal):
        return None
    if tree is None or is_null(tree):
        if not chain:
            problems.add_fatal(Origin("file", path, 1, 1), "the file is empty, expected a recipe")
            return None
        return Table({}, named_at)
    if not isinstance(tree, Table):
        problems.add_fatal(
            tree.origin, f"found {found(tree)}, expected a mapping of keys such as version, name and model"
        )
        return None
    return _with_bases(tree, path, chain, problems)


def _with_bases(tree: Table, path: str, chain: tuple[str, ...], problems: Problems) -> Node:
    entries = dict(tree.entries)
    extends = entries.pop("extends", None)
    merged: Node = Table(entries, tree.origin)
    if extends is None or is_null(extends.node):
        return merged
    below: Node = Table({}, tree.origin)
    for name, origin in _names(extends.node, problems):
        base = _read(os.path.normpath(os.path.join(os.path.dirname(path), name)), (*chain, path), origin, problems)
        below = below if base is None else merge(below, base)
    return merge(below, merged)


def _names(node: Node, problems: Problems) -> Iterable[tuple[str, Origin]]:
    if not isinstance(node, Items):
        problems.add_fatal(
            node.origin, f"extends: found {found(node)}, expected a list of files such as [base/model.yaml]"
        )
        return
    for item in node.items:
        if not isinstance(item, Scalar) or not isinstance(item.value, str) or not item.value:
            problems.add_fatal(item.origin, f"extends: found {found(item)}, expected a file's name")
        elif "$" in item.value:
            problems.add_fatal(item.origin, "extends: takes no variables; name the file itself")
        else:
            yield item.value, item.origin


def _text(path: str, chain: tuple[str, ...], named_at: Origin, problems: Problems) -> str | None:
    file = FilePath(path)
    subject = f"extends: {path}: " if chain else ""
    try:
        if file.is_dir():
            problems.add_fatal(named_at, f"{subject}a directory, expected a file")
            return None
        with file.open("rb") as stream:
            data = stream.read(_LARGEST_BYTES + 1)
    except FileNotFoundError:
        via = f" (through {' -> '.join((*chain, path))})" if chain else ""
        problems.add_fatal(named_at, f"{subject}no such file{via}.{_similar(file)}".rstrip("."))
        return None
    except OSError as error:
        problems.add_fatal(named_at, f"{subject}can't be read: {error.strerror}")
        return None
    return _decoded(data, path, problems)


def _decoded(data: bytes, path: str, problems: Problems) -> str | None:
    at_start = Origin("file", path, 1, 1)
    if len(data) > _LARGEST_BYTES:
        problems.add_fatal(at_start, f"larger than {_LARGEST_BYTES} bytes; this is no recipe")
    elif b"\0" in data:
        problems.add_fatal(at_start, "a binary file, expected YAML text")
    else:
        try:
            return data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            column = error.start - (data.rfind(b"\n", 0, error.start) + 1) + 1
            problems.add_fatal(Origin("file", path, line, column), "not UTF-8. Save the file as UTF-8")
    return None


def _similar(file: FilePath) -> str:
    try:
        names = [entry.name for entry in file.parent.iterdir() if entry.suffix in {".yaml", ".yml"}]
    except OSError:
        return ""
    return did_you_mean(file.name, names)


__all__ = ["read_tree"]
