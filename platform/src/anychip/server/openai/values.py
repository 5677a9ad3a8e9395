"""Values that requests of several endpoints share: how each may be written, checked, and described for readers.

Knows types and ranges; knows no field's name.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, FailFast, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

NO_LIMIT = -1


def _whole(value: object) -> object:
    """JSON knows one kind of number: 5.0 is 5."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _as_stops(value: object) -> object:
    """One stop string as a list of one; an empty string among them would stop everything at once."""
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise PydanticCustomError("stop", "expected a string or a list of strings")
    if "" in stops:
        raise PydanticCustomError("stop", "a stop string must not be empty")
    return stops


def _limit(value: int) -> int:
    if value < 1 and value != NO_LIMIT:
        raise PydanticCustomError("max_tokens", "expected 1 or more, or -1 for no limit of its own")
    return value


def token_limit(asked: int | None, otherwise: int | None) -> int | None:
    """How many tokens a request allows; None: as many as the context has room for."""
    return otherwise if asked is None else None if asked == NO_LIMIT else asked


def as_prompts(value: object) -> list[str] | list[list[int]]:
    """The four shapes of a prompt as a list of texts or of token lists."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value:
        if all(isinstance(item, str) for item in value):
            return value
        if _are_ids(value):
            return [value]
        if all(isinstance(item, list) and item and _are_ids(item) for item in value):
            return value
    raise PydanticCustomError(
        "prompt", "expected a string, a list of strings, a list of token ids, or a list of such lists; none empty"
    )


def _are_ids(items: list[object]) -> bool:
    return all(type(item) is int and item >= 0 for item in items)


_STOP = {"type": "string", "minLength": 1}
_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_TEXT = {"type": "string", "minLength": 1}
PROMPT_SCHEMA: dict[str, object] = {
    "anyOf": [
        _TEXT,
        {"type": "array", "items": _TEXT, "minItems": 1},
        _IDS,
        {"type": "array", "items": _IDS, "minItems": 1},
    ]
}

Whole = Annotated[int, BeforeValidator(_whole)]
Seed = Annotated[Whole, Field(ge=-(2**63), lt=2**63)]
TokenIds = Annotated[list[Annotated[Whole, Field(ge=0)]], FailFast()]
Stops = Annotated[
    list[str],
    BeforeValidator(_as_stops),
    WithJsonSchema({"anyOf": [_STOP, {"type": "array", "items": _STOP}]}),
]
MaxTokens = Annotated[
    Whole,
    AfterValidator(_limit),
    WithJsonSchema({"type": "integer", "anyOf": [{"minimum": 1}, {"const": NO_LIMIT}]}),
]

__all__ = [
    "NO_LIMIT",
    "PROMPT_SCHEMA",
    "MaxTokens",
    "Seed",
    "Stops",
    "TokenIds",
    "Whole",
    "as_prompts",
    "token_limit",
]
