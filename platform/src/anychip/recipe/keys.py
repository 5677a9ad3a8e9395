"""List every key of a recipe with what is said about it, read off the schema. Knows no values and no files."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

from annotated_types import Ge, Le
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from anychip.recipe.nodes import Path
from anychip.recipe.quantities import Expect, Seconds, Unit
from anychip.recipe.schema import Recipe, SecretRef

Parts: TypeAlias = "tuple[tuple[Any, tuple[Any, ...]], ...]"  # (type, what annotates it)


@dataclass(frozen=True)
class Key:
    """One key. `path` holds `[]` after a list's name, as in `ops.overrides[].op`."""

    path: str
    expected: str
    default: str | None  # as YAML; None where the key is required
    description: str
    unit: str | None
    allowed: tuple[str, ...]
    is_section: bool
    is_text: bool  # holds text only, so that `1` from a variable stays text
    is_bool: bool
    is_secret: bool

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def section(self) -> str:
        return self.path.rpartition(".")[0]


@lru_cache(maxsize=1)
def all_keys() -> Mapping[str, Key]:
    """Every key by its path, in the schema's order, each section before its keys."""
    return {key.path: key for key in _keys(Recipe, "", is_secret=False)}


def key_at(path: Path) -> Key | None:
    """The key of a value, or None where the schema has none."""
    return all_keys().get(pattern(path))


def pattern(path: Path) -> str:
    """`('ops', 'overrides', 0, 'op')` as `ops.overrides[].op`."""
    text = ""
    for part in path:
        text += "[]" if isinstance(part, int) else f".{part}" if text else part
    return text


def below(section: str) -> tuple[Key, ...]:
    """The keys that a section holds; those of the recipe itself for an empty name."""
    return tuple(key for key in all_keys().values() if key.section == section and not key.path.endswith("[]"))


def _keys(model: type[BaseModel], prefix: str, *, is_secret: bool) -> Iterator[Key]:
    for name, field in model.model_fields.items():
        path = f"{prefix}.{name}" if prefix else name
        parts = _parts(field.annotation, tuple(field.metadata))
        nested = _model(parts)
        is_or_holds_secret = is_secret or nested is SecretRef
        yield _key(path, field, parts, is_secret=is_or_holds_secret)
        if nested is not None:
            yield from _keys(nested, path, is_secret=is_or_holds_secret)
        for kind, _ in parts:
            if _is_list(kind):
                yield from _entry_keys(get_args(kind)[0], f"{path}[]")


def _entry_keys(item: Any, path: str) -> Iterator[Key]:
    """The keys of a list's entries."""
    field = FieldInfo(annotation=item, description="One entry.")
    parts = _parts(item, ())
    nested = _model(parts)
    yield _key(path, field, parts, is_secret=False)
    if nested is not None:
        yield from _keys(nested, path, is_secret=False)


def _key(path: str, field: FieldInfo, parts: Parts, *, is_secret: bool) -> Key:
    nested = _model(parts)
    is_section = nested is not None and nested is not SecretRef
    return Key(
        path=path,
        expected=_expected(field, parts, nested if is_section else None),
        default=None if field.is_required() or is_section else _yaml(field.default),
        description=field.description or "",
        unit=next((m.text for m in field.metadata if isinstance(m, Unit)), None),
        allowed=_allowed(parts),
        is_section=is_section,
        is_text=all(_is_text(t) for t, _ in parts),
        is_bool=any(t is bool for t, _ in parts),
        is_secret=is_secret,
    )


def _expected(field: FieldInfo, parts: Parts, section: type[BaseModel] | None) -> str:
    if section is not None:
        return f"a mapping of {', '.join(section.model_fields)}"
    whole = next((m.text for m in field.metadata if isinstance(m, Expect)), None)
    if whole is None:
        return _either([_words(t, m) for t, m in parts])
    return _either([whole, "null"]) if any(t is type(None) for t, _ in parts) else whole


def _model(parts: Parts) -> type[BaseModel] | None:
    return next((t for t, _ in parts if isinstance(t, type) and issubclass(t, BaseModel)), None)


def _parts(annotation: Any, metadata: tuple[Any, ...]) -> Parts:
    """The alternatives of a type, each with what annotates it."""
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *extra = get_args(annotation)
        spread = [m for e in extra for m in (e.metadata if isinstance(e, FieldInfo) else (e,))]
        return _parts(inner, (*metadata, *spread))
    if origin in {Union, types.UnionType}:
        return tuple(part for choice in get_args(annotation) for part in _parts(choice, metadata))
    return ((annotation, metadata),)


def _words(kind: Any, metadata: tuple[Any, ...]) -> str:
    expect = next((m.text for m in metadata if isinstance(m, Expect)), None)
    if get_origin(kind) is Literal:
        values = [str(value) for value in get_args(kind)]
        return values[0] if len(values) == 1 else f"one of {', '.join(values)}"
    if _is_list(kind):
        return _list_of(get_args(kind)[0])
    if kind is int and expect is None:
        return _whole_number(metadata)
    return {type(None): "null", bool: "true or false"}.get(kind) or expect or "a mapping"


def _list_of(item: Any) -> str:
    parts = _parts(item, ())
    if isinstance(item, type) and issubclass(item, BaseModel):
        return "a list of mappings"
    if _allowed(parts):
        return f"a list of {', '.join(_allowed(parts))}"
    return "a list, each of its entries " + _either([_words(t, m) for t, m in parts])


def _either(words: list[str]) -> str:
    return (", or " if any("," in word or " or " in word for word in words) else " or ").join(words)


def _whole_number(metadata: tuple[Any, ...]) -> str:
    low = next((m.ge for m in metadata if isinstance(m, Ge)), None)
    high = next((m.le for m in metadata if isinstance(m, Le)), None)
    if low is not None and high is not None:
        return f"a whole number from {low} to {high}"
    return "a whole number" if low is None else f"a whole number of at least {low}"


def _is_list(kind: Any) -> bool:
    origin: object = get_origin(kind)
    return origin is tuple


def _is_text(kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return all(isinstance(value, str) for value in get_args(kind))
    return kind in {str, type(None), Seconds}


def _allowed(parts: Parts) -> tuple[str, ...]:
    choices: list[str] = []
    for kind, _ in parts:
        inner = get_args(kind)[0] if _is_list(kind) else kind
        if get_origin(inner) is Literal:
            choices += [str(value) for value in get_args(inner)]
    return tuple(choices)


def _yaml(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return "[]" if value == () else str(value)


__all__ = ["Key", "all_keys", "below", "key_at", "pattern"]
