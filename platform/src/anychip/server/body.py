"""Read a request's JSON body into a model, or say by name what is wrong with it.

Knows JSON and pydantic; knows no endpoint. Which fields count at all, `fields` says.
"""

from __future__ import annotations

from typing import TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails, from_json
from starlette.requests import Request

from anychip.server.fields import Body, FieldSorter, Problem
from anychip_sdk.errors import RequestInvalid

B = TypeVar("B", bound=Body)


async def read_body(request: Request, model: type[B], limit_bytes: int) -> B:
    """The request's body as a `model`."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":  # browsers send anything else across origins without asking
        said = f"content type {media_type[:80]!r}" if media_type else "no Content-Type"
        raise RequestInvalid(f"{said}: send application/json", code="unsupported_media_type", status=415)
    sorter = FieldSorter(is_lenient=request.app.state.service.settings.unknown_fields == "lenient")
    body = parse_body(await _read_bytes(request, limit_bytes), model, sorter)
    request.state.unknown_fields = sorter.unknown
    return body


def parse_body(data: bytes, model: type[B], sorter: FieldSorter) -> B:
    """JSON text as a `model`; raises RequestInvalid that names all wrong fields."""
    try:
        value = from_json(data, allow_inf_nan=False)
    except ValueError as error:
        raise RequestInvalid(f"the body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise RequestInvalid(f"the body must be a JSON object, not {_json_type(value)}")
    kept = sorter.sort(value, model)
    try:
        body = model.model_validate(kept)
    except ValidationError as error:
        raise _refusal([*sorter.problems, *map(_problem, error.errors(include_url=False))]) from None
    if sorter.problems:
        raise _refusal(sorter.problems)
    return body


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


def _refusal(problems: list[Problem]) -> RequestInvalid:
    """All problems in one error; the first one's field is the param."""
    said = "; ".join(problem.message for problem in problems)
    return RequestInvalid(said, param=problems[0].path or None, code=problems[0].code)


def _problem(detail: ErrorDetails) -> Problem:
    given = detail["input"]
    shown = "" if isinstance(given, (dict, list)) or len(repr(given)) > 60 else f", got {given!r}"
    if detail["type"] == "missing":
        shown = ""
    where = path_of(detail["loc"])
    said = detail["msg"].removeprefix("Value error, ")
    return Problem(where, f"{where}: {said}{shown}" if where else said)


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
