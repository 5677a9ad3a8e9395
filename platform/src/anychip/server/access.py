"""What happens around every request: it gets an id, is counted, and one line is logged; what it raises is answered.

Knows paths and statuses; never sees a body.
"""

from __future__ import annotations

import re
import uuid
from typing import Protocol

import structlog
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from anychip.server.errors import error_response
from anychip.server.record import Record, begin, current

#: Asked every second by somebody: open to all, and not logged unless refused.
PROBES = frozenset({"/health", "/ready", "/metrics"})
REQUEST_ID_HEADER = "X-Request-Id"
_GOOD_ID = re.compile(r"[!-~]{1,128}")  # printable ASCII without spaces

log = structlog.get_logger("anychip.access")


class Observer(Protocol):
    """Who is told of requests; probes don't count as open ones."""

    def request_began(self, record: Record) -> None: ...
    def request_ended(self, record: Record) -> None: ...


class AccessLog:
    """The outermost layer."""

    def __init__(self, app: ASGIApp, observer: Observer | None = None) -> None:
        self._app = app
        self._observer = observer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = _record_of(scope)
        begin(record)
        if self._observer is not None:
            self._observer.request_began(record)
        try:
            with structlog.contextvars.bound_contextvars(request_id=record.request_id):
                await self._answer(record, scope, receive, send)
        finally:
            if self._observer is not None:
                self._observer.request_ended(record)
            if record.path not in PROBES or 400 <= record.status < 500:
                log.info("request", **record.to_log())

    async def _answer(self, record: Record, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                own = (REQUEST_ID_HEADER.lower().encode(), record.request_id.encode())
                message = {**message, "headers": [*message.get("headers", ()), own]}
            await send(message)

        await self._app(scope, receive, send_with_id)


class Unforeseen:
    """The innermost layer: what the application raises is logged and answered, within all that others do to replies."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False

        async def watched_send(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, watched_send)
        except Exception as error:
            log.error("request failed", path=scope["path"][:200], exc_info=error)
            if has_begun:  # the server sees that the reply has no end, and cuts the connection
                current().fail("internal_error")
            else:
                await error_response(error)(scope, receive, send)


def _record_of(scope: Scope) -> Record:
    given = Headers(scope=scope).getlist(REQUEST_ID_HEADER)
    good = [value for value in given if _GOOD_ID.fullmatch(value)]
    client = scope.get("client")
    return Record(
        request_id=good[0] if good else uuid.uuid4().hex,
        client=f"{client[0][:64]}:{client[1]}" if client else "",
        method=scope["method"][:20],
        path=scope["path"][:200],
    )


__all__ = ["PROBES", "REQUEST_ID_HEADER", "AccessLog", "Observer", "Unforeseen"]
