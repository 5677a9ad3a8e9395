"""Errors as OpenAI's clients expect them. Knows statuses and shapes; knows nothing of where an error comes from."""

from __future__ import annotations

from typing import Literal

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from anychip.server.record import current
from anychip_sdk.errors import AnychipError, EngineDead, QueueFull, RequestInvalid

ErrorType = Literal["invalid_request_error", "authentication_error", "rate_limit_error", "server_error"]

#: Longer messages are cut, wherever they come from: some quote what a client sent.
MESSAGE_CHARACTERS = 16_000


class ErrorBody(msgspec.Struct, frozen=True):
    message: str
    type: ErrorType
    param: str | None = None
    code: str | int | None = None


class ErrorReply(msgspec.Struct, frozen=True):
    error: ErrorBody


def status_of(error: Exception) -> int:
    """The HTTP status that belongs to an error."""
    if isinstance(error, RequestInvalid):
        return error.status
    if isinstance(error, QueueFull):
        return 429
    if isinstance(error, EngineDead):
        return 503
    return 500


def error_reply(error: Exception) -> ErrorReply:
    """The body that belongs to an error; an unforeseen one tells nothing of its inside."""
    if isinstance(error, RequestInvalid):
        kind: ErrorType = "authentication_error" if error.status == 401 else "invalid_request_error"
        return ErrorReply(ErrorBody(error.message[:MESSAGE_CHARACTERS], kind, error.param, error.code))
    if isinstance(error, QueueFull):
        return ErrorReply(ErrorBody(error.message, "rate_limit_error", code="queue_full"))
    if isinstance(error, EngineDead):
        return ErrorReply(ErrorBody(error.message, "server_error", code="engine_unavailable"))
    if isinstance(error, AnychipError):
        return ErrorReply(ErrorBody(error.message, "server_error", code="engine_error"))
    return ErrorReply(ErrorBody("internal error; the service's log has the details", "server_error"))


def json_response(body: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(body), status, headers, media_type="application/json")


def note(error: Exception) -> ErrorReply:
    """The body that belongs to an error, which the request's line in the log will name."""
    reply = error_reply(error)
    unnamed = "invalid_request" if isinstance(error, RequestInvalid) else "internal_error"
    current().fail(str(reply.error.code or unnamed), reply.error.param)
    return reply


def error_response(error: Exception) -> Response:
    headers = {}
    if isinstance(error, QueueFull):
        headers["Retry-After"] = str(max(1, round(error.retry_after_s)))
    if isinstance(error, EngineDead):
        headers["Retry-After"] = "1"
    if isinstance(error, RequestInvalid) and error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return json_response(note(error), status_of(error), headers)


async def on_anychip_error(_request: Request, error: Exception) -> Response:
    return error_response(error)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Unknown paths and methods, in the same shape as every other error."""
    assert isinstance(error, HTTPException)
    current().fail(error.detail)
    message = f"{request.method} {request.url.path}: {error.detail}"
    body = ErrorReply(ErrorBody(message, "invalid_request_error", code=error.status_code))
    return json_response(body, error.status_code, dict(error.headers or {}))


async def on_disconnect(_request: Request, _error: Exception) -> Response:
    """The client left while its body was read: nobody reads this."""
    return Response(status_code=499)


HANDLERS = {
    AnychipError: on_anychip_error,
    HTTPException: on_http_exception,
    ClientDisconnect: on_disconnect,
}

__all__ = ["HANDLERS", "ErrorBody", "ErrorReply", "error_reply", "error_response", "json_response", "note", "status_of"]
