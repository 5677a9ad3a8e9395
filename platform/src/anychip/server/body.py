"""Read a request's JSON body into a model, or say by name what is wrong with it.

Knows JSON and pydantic; knows no endpoint.

A null is the same as an absent field. Fields that this version doesn't offer are listed by each model: their neutral
values pass, anything else is refused by name, never ignored.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails, from_json
from starlette.requests import Request

from anychip_sdk.errors import RequestInvalid


class Body(BaseModel):
    """Base of all request bodies: exact types, no unknown names."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)

    #: names with no effect on the output
    ignored: ClassVar[frozenset[str]] = frozenset()
    #: names not offered yet, with the values that ask for nothing
    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {}


B = TypeVar("B", bound=Body)


async def read_body(request: Request, model: type[B], limit_bytes: int) -> B:
    """The request's body as a `model`."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":  # browsers send anything else across origins without asking
        said = f"content type {media_type[:80]!r}" if media_type else "no Content-Type"
        raise RequestInvalid(f"{said}: send application/json", code="unsupported_media_type", status=415)
    return parse_body(await _read_bytes(request, limit_bytes), model)


def parse_body(data: bytes, model: type[B]) -> B:
    """JSON text as a `model`; raises RequestInvalid that names all wrong fields."""
    try:
        value = from_json(data, allow_inf_nan=False)
    except ValueError as error:
        raise RequestInvalid(f"the body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise RequestInvalid(f"the body must be a JSON object, not {_json_type(value)}")
    return parse_object(value, model)


def parse_object(value: dict[str, object], model: type[B], path: str = "") -> B:
    """A decoded object as a `model`; `path` is where it lies in the body."""
    try:
        return model.model_validate(_offered(value, model, path))
    except ValidationError as error:
        raise _invalid(error.errors(include_url=False), path) from None


async def _read_bytes(request: Request, limit_bytes: int) -> bytes:
    too_large = RequestInvalid(f"the body is larger than {limit_bytes} bytes", code="body_too_large", status=413)
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length[:20]) > limit_bytes:
        raise too_large
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit_bytes:
            raise too_large
        chunks.append(chunk)
    return b"".join(chunks)


def _offered(value: dict[str, object], model: type[Body], path: str) -> dict[str, object]:
    """The fields that the model has; raises for names that are unknown or not offered."""
    offered = {}
    for name, given in value.items():
        if name in model.model_fields:
            if given is not None:
                offered[name] = given
        elif name in model.unsupported:
            if not _is_neutral(given, model.unsupported[name]):
                message = f"{path}{name}: not supported by this version; leave it out"
                raise RequestInvalid(message, param=path + name, code="unsupported_parameter")
        elif name not in model.ignored:
            message = path + _unknown(name, model)
            raise RequestInvalid(message, param=path + name[:80], code="unknown_parameter")
    return offered


def _is_neutral(given: object, neutral: tuple[object, ...]) -> bool:
    return given is None or any(type(given) is type(value) and given == value for value in neutral)


def _unknown(name: str, model: type[Body]) -> str:
    known = [*model.model_fields, *model.ignored, *model.unsupported]
    near = difflib.get_close_matches(name, known, n=1)
    return f"{name[:80]}: unknown parameter" + (f". Did you mean {near[0]}?" if near else "")


def _invalid(errors: list[ErrorDetails], path: str) -> RequestInvalid:
    """All problems in one error; the first one's field is the param."""
    problems = []
    for detail in errors:
        given = detail["input"]
        shown = "" if isinstance(given, (dict, list)) or len(repr(given)) > 60 else f", got {given!r}"
        if detail["type"] == "missing":
            shown = ""
        where = path + path_of(detail["loc"])
        said = detail["msg"].removeprefix("Value error, ")
        problems.append(f"{where}: {said}{shown}" if where else said)
    return RequestInvalid("; ".join(problems), param=path + path_of(errors[0]["loc"]) or None)


def path_of(location: tuple[int | str, ...]) -> str:
    """("messages", 0, "role") as messages[0].role."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path


def _json_type(value: object) -> str:
    names = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


__all__ = ["Body", "parse_body", "parse_object", "path_of", "read_body"]
