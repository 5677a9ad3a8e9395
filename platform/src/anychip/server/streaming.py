"""Server-sent events and the watch for clients that leave. Knows ASGI; knows nothing of what is sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TypeVar

import msgspec
import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from anychip.server.errors import note
from anychip_sdk.errors import AnychipError

DONE = b"data: [DONE]\n\n"
_json = msgspec.json.Encoder()

log = structlog.get_logger("anychip.server")
T = TypeVar("T")


def frame(value: object) -> bytes:
    """One event."""
    return b"data: " + _json.encode(value) + b"\n\n"


class EventStream(Response):
    """Sends frames as they come; when the client leaves, the source is cancelled at once, also while it waits.

    An error of the source becomes an event, and the stream ends after it.
    """

    media_type = "text/event-stream"

    def __init__(self, source: AsyncIterator[bytes], on_end: Callable[[], None]) -> None:
        self.status_code = 200
        self.background = None
        self.body = b""
        self._source = source
        self._on_end = on_end
        # proxies must hand on each event as it comes
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await first_done(self._write(send), _gone(receive))
        finally:
            self._on_end()

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async for frames in self._source:
                await send({"type": "http.response.body", "body": frames, "more_body": True})
        except AnychipError as error:
            await send({"type": "http.response.body", "body": frame(note(error)), "more_body": True})
        except Exception as error:
            log.error("stream failed", exc_info=error)
            await send({"type": "http.response.body", "body": frame(note(error)), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def until_gone(request: Request, work: Coroutine[object, object, T]) -> T | None:
    """The work's result; None when the client left first, with the work cancelled."""
    return await first_done(work, _gone(request.receive))


async def first_done(work: Coroutine[object, object, T], other: Coroutine[object, object, None]) -> T | None:
    """Run both until one ends; the other is cancelled."""
    tasks = (asyncio.ensure_future(work), asyncio.ensure_future(other))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return tasks[0].result() if tasks[0].done() else None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


__all__ = ["DONE", "EventStream", "first_done", "frame", "until_gone"]
