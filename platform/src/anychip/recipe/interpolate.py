"""Put variables into a recipe's values: `${VAR}`, `${VAR:-default}`, `${VAR:?message}`, `$$`. Knows no key."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from anychip.recipe.errors import Problems
from anychip.recipe.nodes import Entry, Items, Node, Path, Scalar, Table, dotted
from anychip.recipe.scalars import is_text, resolve

_DOLLAR = re.compile(r"\$(?:(?P<escaped>\$)|\{(?P<body>[^{}]*)\}|(?P<stray>))")
_BODY = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?:(?P<operator>:-|:\?)(?P<argument>.*))?", re.DOTALL)
_FORMS = "write ${NAME}, ${NAME:-default} or ${NAME:?message}, or $$ for a dollar"


class InterpolationError(ValueError):
    """The text names a variable that is not set or no text, or its `$` is not one of the forms."""


@dataclass(frozen=True)
class Interpolated:
    text: str
    variables: tuple[str, ...]  # the ones that were named, in order


def interpolate_text(text: str, env: Mapping[str, str]) -> Interpolated:
    """The text with its variables put in; their values are not interpolated again.

    A variable that is set but empty counts as unset where there is a default or a message, as in a shell.
    """
    names: list[str] = []

    def put(match: re.Match[str]) -> str:
        if match["escaped"]:
            return "$"
        body = None if match["body"] is None else _BODY.fullmatch(match["body"])
        if body is None:
            raise InterpolationError(f"a `$` that starts no variable; {_FORMS}")
        names.append(body["name"])
        return _value(body["name"], body["operator"], body["argument"], env)

    return Interpolated(_DOLLAR.sub(put, text), tuple(names))


def _value(name: str, operator: str | None, argument: str | None, env: Mapping[str, str]) -> str:
    value = env.get(name)
    if value and not is_text(value):
        raise InterpolationError(f"the variable {name} is not UTF-8 text")
    if operator is None:
        if value is None:
            raise InterpolationError(f"the variable {name} is not set. Set it, or write ${{{name}:-default}}")
        return value
    if value:
        return value
    if operator == ":-":
        return argument or ""
    raise InterpolationError(
        f"the variable {name} is not set: {argument}" if argument else f"the variable {name} is not set"
    )


def interpolate_tree(
    node: Node, env: Mapping[str, str], problems: Problems, path: Path = ()
) -> tuple[Node, tuple[Path, ...]]:
    """The tree with its variables put in, and the paths of the values that could not be."""
    if isinstance(node, Scalar):
        return _scalar(node, env, problems, path)
    broken: tuple[Path, ...] = ()
    if isinstance(node, Items):
        items = []
        for index, item in enumerate(node.items):
            done, bad = interpolate_tree(item, env, problems, (*path, index))
            items.append(done)
            broken += bad
        return Items(tuple(items), node.origin), broken
    entries = {}
    for key, entry in node.entries.items():
        done, bad = interpolate_tree(entry.node, env, problems, (*path, key))
        entries[key] = Entry(entry.key_origin, done)
        broken += bad
    return Table(entries, node.origin, node.resets), broken


def _scalar(node: Scalar, env: Mapping[str, str], problems: Problems, path: Path) -> tuple[Node, tuple[Path, ...]]:
    if not isinstance(node.value, str) or "$" not in node.text:
        return node, ()
    try:
        done = interpolate_text(node.text, env)
    except InterpolationError as error:
        problems.add(node.origin, dotted(path), str(error))
        return node, (path,)
    # The text may have become a number, as in `port: ${PORT:-8000}`, quoted or not, since {braces} need the quotes.
    # Only unquoted text becomes null, and empty text never does: it would silently reset the key.
    value = resolve(done.text) if done.text else done.text
    if value is None and not node.is_plain:
        value = done.text
    return Scalar(value, node.origin.through(done.variables), done.text, node.is_plain), ()


__all__ = ["Interpolated", "InterpolationError", "interpolate_text", "interpolate_tree"]
