"""Sort a body's fields by their names, before their values are checked. Knows names and neutral values; no endpoint.

A null is the same as an absent field, everywhere. Fields that this version doesn't offer are listed by each model:
values of theirs that ask for nothing pass, anything else is refused by name. Unknown fields are refused too, or ignored
and named where the service is lenient.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from functools import cache
from typing import ClassVar, NamedTuple, get_args

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from anychip.server.body_shape import Limited

SHOWN_CHARS = 80  #: of a name that a client made up
GUESSED_NAMES = 20  #: so many unknown names of a body are compared with the known ones
GUESSED_CHARS = 60  #: longer names resemble nothing
NOT_OFFERED = "Not offered by this version."
NO_EFFECT = "Accepted, and without effect."


class Body(BaseModel):
    """Base of all request bodies: exact types, no unknown names."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)

    #: names with no effect on the output
    ignored: ClassVar[frozenset[str]] = frozenset()
    #: names not offered yet, with the values that ask for nothing
    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {}
    #: the key of server.limits that bounds a field; of a field that is another body, that one's
    limited: ClassVar[Limited] = {}

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Beside the fields: that null is as good as absent, and which other names pass with which values."""
        found = handler(core)
        schema = handler.resolve_ref_schema(found)
        fields: dict[str, JsonSchemaValue] = schema.get("properties", {})
        required = schema.get("required", [])
        known = {name: field if name in required else _or_null(field) for name, field in fields.items()}
        others: dict[str, JsonSchemaValue] = {
            name: {"enum": [*values, None], "description": NOT_OFFERED} for name, values in cls.unsupported.items()
        }
        without_effect = {name: {"description": NO_EFFECT} for name in sorted(cls.ignored)}
        schema["properties"] = {**known, **others, **without_effect}
        return found


def _or_null(field: JsonSchemaValue) -> JsonSchemaValue:
    about = {key: field[key] for key in ("description", "default") if field.get(key) is not None}
    kind = {key: value for key, value in field.items() if key not in {"description", "default", "title"}}
    options = kind["anyOf"] if kind.keys() == {"anyOf"} else [kind]
    null = {"type": "null"}
    return {"anyOf": options if null in options else [*options, null], **about}


class Problem(NamedTuple):
    """What is wrong with one field; `path` is where it lies in the body."""

    path: str
    message: str
    code: str | None = None


class FieldSorter:
    """Sorts one body. Afterwards `problems` holds what is refused, and `unknown` the paths of what was ignored."""

    def __init__(self, *, is_lenient: bool) -> None:
        self.problems: list[Problem] = []
        self.unknown: list[str] = []
        self._is_lenient = is_lenient

    def sort(self, value: Mapping[str, object], model: type[Body], path: str = "") -> dict[str, object]:
        """The fields that the model has, without nulls, and those of the bodies within."""
        kept, bodies = {}, bodies_in(model)
        for name, given in value.items():
            where = path + name[:SHOWN_CHARS]
            if given is None or name in model.ignored:
                continue
            if name in model.model_fields:
                kept[name] = self._inner(given, bodies[name], where)
            elif name in model.unsupported:
                if not _is_neutral(given, model.unsupported[name]):
                    said = f"{where}: not supported by this version; leave it out"
                    self.problems.append(Problem(where, said, "unsupported_parameter"))
            elif self._is_lenient:
                self.unknown.append(where)
            else:
                said = f"{where}: unknown parameter"
                if len(self.problems) < GUESSED_NAMES:
                    said += _suggestion(name, model)
                self.problems.append(Problem(where, said, "unknown_parameter"))
        return kept

    def _inner(self, given: object, inner: type[Body] | None, path: str) -> object:
        if inner is None:
            return without_nulls(given)
        if isinstance(given, dict):
            return self.sort(given, inner, path + ".")
        if isinstance(given, list):
            return [
                self.sort(item, inner, f"{path}[{index}].") if isinstance(item, dict) else item
                for index, item in enumerate(given)
            ]
        return given


@cache
def bodies_in(model: type[Body]) -> Mapping[str, type[Body] | None]:
    """By field, the body of which it holds one, or a list."""
    return {name: body_in(field.annotation) for name, field in model.model_fields.items()}


def body_in(annotation: object) -> type[Body] | None:
    """The body of which a field holds one, or a list."""
    if inspect.isclass(annotation) and issubclass(annotation, Body):
        return annotation
    return next((found for inner in get_args(annotation) if (found := body_in(inner)) is not None), None)


def without_nulls(value: object) -> object:
    """An object without its members that are null, at any depth; a list keeps its elements."""
    if isinstance(value, dict):
        return {name: without_nulls(inner) for name, inner in value.items() if inner is not None}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [without_nulls(item) for item in value]
    return value


def _is_neutral(given: object, neutral: tuple[object, ...]) -> bool:
    plain = without_nulls(given)
    return any(isinstance(plain, bool) == isinstance(value, bool) and plain == value for value in neutral)


def _suggestion(name: str, model: type[Body]) -> str:
    known = [*model.model_fields, *model.ignored, *model.unsupported]
    near = difflib.get_close_matches(name, known, n=1) if len(name) <= GUESSED_CHARS else []
    return f". Did you mean {near[0]}?" if near else ""


__all__ = ["Body", "FieldSorter", "Problem", "bodies_in", "without_nulls"]
