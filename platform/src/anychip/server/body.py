"""Read a request's JSON body into a model, or say by name what is wrong with it.

Knows JSON and pydantic; knows no endpoint. Which fields count at all, `fields` says.
"""

from __future__ import annotations

from typing import TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import Request

from anychip.recipe.limits import LimitsSection
from anychip.server.body_shape import check_objects, over_limit
from anychip.server.fields import Body, FieldSorter, Problem
from anychip.server.json_reader import JsonReader
from anychip.server.offload import Offload
from anychip_sdk.errors import RequestInvalid

B = TypeVar("B", bound=Body)


async def read_body(request: Request, model: type[B], limits: LimitsSection, offload: Offload, reader: JsonReader) -> B:
    """The request's body as a `model`.

    Raises:
        RequestInvalid: naming the limit that it exceeds, or all fields that are wrong.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":  # browsers send anything else across origins without asking
        said = f"content type {media_type[:80]!r}" if media_type else "no Content-Type"
        raise RequestInvalid(f"{said}: send application/json", code="unsupported_media_type", status=415)
    sorter = FieldSorter(is_lenient=request.app.state.service.settings.unknown_fields == "lenient")
    data = await _read_bytes(request, limits.body_bytes)
    body = await offload.run(len(data), lambda: parse_body(reader.read(data), model, sorter, limits))
    request.state.unknown_fields = sorter.unknown
    return body


def parse_body(value: object, model: type[B], sorter: FieldSorter, limits: LimitsSection) -> B:
    """A value of JSON as a `model`; raises RequestInvalid that names all wrong fields."""
    if not isinstance(value, dict):
        raise RequestInvalid(f"the body must be a JSON object, not {_json_type(value)}")
    check_objects(value, limits, model.limited)
    kept = sorter.sort(value, model)
    try:
        body = model.model_validate(kept)
    except ValidationError as error:
        raise _refusal([*sorter.problems, *map(_problem, error.errors(include_url=False))], limits) from None
    if sorter.problems:
        raise _refusal(sorter.problems, limits)
    return body


async def _read_bytes(request: Request, limit_bytes: int) -> bytes:
    too_large = over_limit("body_bytes", limit_bytes, "the body has too many bytes", status=413)
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


def _refusal(problems: list[Problem], limits: LimitsSection) -> RequestInvalid:
    """All problems in one error, as far as the limits allow; the first one's field is the param."""
    said = [problem.message[: limits.error_characters] for problem in problems[: limits.errors]]
    if len(problems) > limits.errors:
        said.append(f"and {len(problems) - limits.errors} more (server.limits.errors)")
    param = problems[0].path[: limits.error_characters]
    return RequestInvalid("; ".join(said), param=param or None, code=problems[0].code)


def _problem(detail: ErrorDetails) -> Problem:
    given = detail["input"]
    shown = "" if detail["type"] == "missing" else _shown(given)
    where = path_of(detail["loc"])
    said = detail["msg"].removeprefix("Value error, ")
    return Problem(where, f"{where}: {said}{shown}" if where else said)


def _shown(given: object) -> str:
    """What was given, where that is short."""
    if isinstance(given, (dict, list)) or (isinstance(given, str) and len(given) > 60):
        return ""
    text = repr(given)
    return f", got {text}" if len(text) <= 60 else ""


def path_of(location: tuple[int | str, ...]) -> str:
    """("messages", 0, "role") as messages[0].role."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path


def _json_type(value: object) -> str:
    names = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


__all__ = ["parse_body", "path_of", "read_body"]
