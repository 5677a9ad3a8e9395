"""Turn `--set a.b=c` and `ANYCHIP_SET__a__b=c` into trees to lay over a recipe. Knows no files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from anychip.recipe.check import unknown_key
from anychip.recipe.errors import Problems, closest
from anychip.recipe.keys import all_keys
from anychip.recipe.merge import merge
from anychip.recipe.nodes import Entry, Node, Scalar, Table
from anychip.recipe.origins import Origin
from anychip.recipe.parse import parse
from anychip_sdk.errors import UsageError

PREFIX = "ANYCHIP_SET__"
_SEPARATOR = "__"


def environment_tree(env: Mapping[str, str], problems: Problems) -> Node:
    """The tree of every `ANYCHIP_SET__section__key=value`, in the order of their names."""
    tree: Node = Table({}, Origin("env", PREFIX))
    for name in sorted(name for name in env if name.startswith(PREFIX)):
        origin = Origin("env", name)
        path = tuple(name[len(PREFIX) :].split(_SEPARATOR))
        if ".".join(path) not in all_keys():
            problems.add(origin, "", _unknown_variable(path))
        elif not env[name].strip():
            problems.add(origin, ".".join(path), "set but empty. Unset it, or set it to null for the default")
        else:
            tree = _put(tree, path, env[name], origin, problems)
    return tree


def sets_tree(sets: Iterable[str], problems: Problems) -> Node:
    """The tree of every `a.b=value`, in order.

    Raises:
        UsageError: one of them is no assignment.
    """
    tree: Node = Table({}, Origin("set", "--set"))
    for assignment in sets:
        name, equals, text = assignment.partition("=")
        path = tuple(name.strip().split("."))
        if not equals or not all(path):
            raise UsageError(f"--set {assignment}: expected key=value", hint="for example --set server.port=8001")
        origin = Origin("set", "--set")
        if ".".join(path) in all_keys():
            tree = _put(tree, path, text, origin, problems)
        else:
            problems.add(origin, ".".join(path), _unknown_path(path))
    return tree


def _put(tree: Node, path: tuple[str, ...], text: str, origin: Origin, problems: Problems) -> Node:
    """The tree with one value more, read as YAML: `true`, `8001` and `[mha, ffn]` are what they look like."""
    before = len(problems)
    value = parse(text, origin.source, problems, origin, ".".join(path))
    if len(problems) > before:
        return tree
    node: Node = Scalar(None, origin, "null", True) if value is None else value
    for part in reversed(path):
        node = Table({part: Entry(origin, node)}, origin)
    return merge(tree, node)


def _unknown_path(path: tuple[str, ...]) -> str:
    if path == ("extends",):
        return "only a file extends others"
    for length in range(1, len(path)):
        key = all_keys().get(".".join(path[:length]))
        if key is None:
            return unknown_key(path[:length])
        if not key.is_section and not key.is_secret:
            return f"{key.path} holds one value. Set it as a whole, such as --set '{key.path}=...'"
    return unknown_key(path)


def _unknown_variable(path: tuple[str, ...]) -> str:
    meant = closest(".".join(path), [key for key in all_keys() if "[]" not in key])
    if meant is None:
        return f"unknown variable, expected {PREFIX} and a key such as server__port"
    return f"unknown variable. Did you mean {PREFIX}{meant.replace('.', _SEPARATOR)}?"


__all__ = ["PREFIX", "environment_tree", "sets_tree"]
