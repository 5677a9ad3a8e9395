"""Values that requests of several endpoints share: how each may be written, checked, and described for readers.

Knows types and ranges; knows no field's name.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

MAX_STOPS = 16
MAX_STOP_CHARS = 1024
MAX_PROMPTS = 512
NO_LIMIT = -1

T = TypeVar("T", bound=Sized)


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
    if len(stops) > MAX_STOPS or any(len(stop) > MAX_STOP_CHARS for stop in stops):
        raise PydanticCustomError(
            "stop", "at most {count} stop strings of {size} characters", {"count": MAX_STOPS, "size": MAX_STOP_CHARS}
        )
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
            return _counted(value)
        if _are_ids(value):
            return [value]
        if all(isinstance(item, list) and item and _are_ids(item) for item in value):
            return _counted(value)
    raise PydanticCustomError(
        "prompt", "expected a string, a list of strings, a list of token ids, or a list of such lists; none empty"
    )


def _counted(prompts: T) -> T:
    if len(prompts) > MAX_PROMPTS:
        raise PydanticCustomError("prompt", "at most {count} prompts in one request", {"count": MAX_PROMPTS})
    return prompts


def _are_ids(items: list[object]) -> bool:
    return all(type(item) is int and item >= 0 for item in items)


_STOP = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARS}
_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_TEXT = {"type": "string", "minLength": 1}
PROMPT_SCHEMA: dict[str, object] = {
    "anyOf": [
        _TEXT,
        {"type": "array", "items": _TEXT, "minItems": 1, "maxItems": MAX_PROMPTS},
        _IDS,
        {"type": "array", "items": _IDS, "minItems": 1, "maxItems": MAX_PROMPTS},
    ]
}

Whole = Annotated[int, BeforeValidator(_whole)]
Seed = Annotated[Whole, Field(ge=-(2**63), lt=2**63)]
TokenIds = list[Annotated[Whole, Field(ge=0)]]
Stops = Annotated[
    list[str],
    BeforeValidator(_as_stops),
    WithJsonSchema({"anyOf": [_STOP, {"type": "array", "items": _STOP, "maxItems": MAX_STOPS}]}),
]
MaxTokens = Annotated[
    Whole,
    AfterValidator(_limit),
    WithJsonSchema({"type": "integer", "anyOf": [{"minimum": 1}, {"const": NO_LIMIT}]}),
]

__all__ = [
    "MAX_PROMPTS",
    "MAX_STOPS",
    "MAX_STOP_CHARS",
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
