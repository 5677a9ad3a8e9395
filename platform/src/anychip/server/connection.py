"""One HTTP connection, bounded in time, headers and number. Knows bytes and limits; knows no endpoint.

It adds to uvicorn's protocol what that leaves unbounded: how long headers and bodies may take, how large headers may
be, and how many connections are open at once.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Literal

import structlog
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from anychip.recipe.limits import LimitsSection
from anychip.server.body_shape import over_limit
from anychip.server.errors import error_response
from anychip_sdk.errors import AnychipError, RequestInvalid

#: Headers are fed to the parser in pieces, so that it never holds much more than the limit.
PIECE_BYTES = 4096

Stage = Literal["idle", "headers", "body"]

log = structlog.get_logger("anychip.server")


class Connection(HttpToolsProtocol):
    """A connection of one client; uvicorn makes one for each."""

    def __init__(self, *, limits: LimitsSection, **given: Any) -> None:
        super().__init__(**given)
        self.timeout_keep_alive = limits.idle_timeout  # type: ignore[assignment]  # uvicorn declares whole seconds
        self.waiting_since_s = time.monotonic()
        self._limits = limits
        self._stage: Stage = "idle"
        self._timer: asyncio.TimerHandle | None = None
        self._reader_timer: asyncio.TimerHandle | None = None  # runs while the client reads too little
        self._header_bytes = self._header_count = 0  # of the request that arrives
        self._fed_bytes = 0  # of its headers, as far as they are not complete
        self._exceeded = ""  # the limit that its headers exceed
        self._is_refused = False

    @property
    def is_replaceable(self) -> bool:
        """Whether nothing is lost for anybody who has sent a request."""
        return self._stage != "body" and not self._is_answering and not self.transport.is_closing()

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._limits.connections and not self._take_a_place():
            self._refuse("connections", "all connections are in use", 503)
        else:
            self._start_timer(self._limits.header_timeout)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._stop_reader_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        while data and not self._is_refused and not self.transport.is_closing():
            size = len(data) if self._stage == "body" else PIECE_BYTES
            piece, data = data[:size], data[size:]
            self._fed_bytes += len(piece)
            super().data_received(piece)
            if self._stage == "headers" and self._fed_bytes > self._limits.header_bytes:
                self._exceeded = "header_bytes"
            if self._exceeded:
                self._refuse(self._exceeded, "the request's headers are too many or too large", 431)
        is_untimed = self._timer is None and self.timeout_keep_alive_task is None
        if is_untimed and self.is_replaceable:  # bytes came that begin no request
            self._start_timer(self._limits.header_timeout)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._stage = "headers"
        self._header_bytes = self._header_count = self._fed_bytes = 0
        self._start_timer(self._limits.header_timeout)

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_count += 1
        self._count(len(name) + len(value) + len(": \r\n"))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._exceeded:
            return
        super().on_headers_complete()
        self._stage = "body"
        self._start_timer(self._limits.body_timeout)

    def on_body(self, body: bytes) -> None:
        if not self._exceeded:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self._exceeded:
            return
        super().on_message_complete()
        self._stage = "idle"
        self._stop_timer()

    def on_response_complete(self) -> None:
        self.waiting_since_s = time.monotonic()
        self._await_the_reader()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_reader_timer()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_reader_timer()
        if self.transport.is_closing():
            self._await_the_reader()
        else:
            self.transport.set_write_buffer_limits()

    def send_400_response(self, msg: str) -> None:
        self._end_with(RequestInvalid(msg, code="invalid_http"))

    def _count(self, header_bytes: int) -> None:
        self._header_bytes += header_bytes
        if self._header_bytes > self._limits.header_bytes:
            self._exceeded = "header_bytes"
        elif self._header_count > self._limits.headers:
            self._exceeded = "headers"

    def _take_a_place(self) -> bool:
        """Close the connection that has waited longest for a request; False where none waits."""
        others = [one for one in self.connections if isinstance(one, Connection) and one is not self]
        waiting = [one for one in others if one.is_replaceable]
        if waiting:
            min(waiting, key=lambda one: one.waiting_since_s).transport.close()
        return bool(waiting)

    def _start_timer(self, seconds: float) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, self._expire, seconds)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _await_the_reader(self) -> None:
        """Bound how long the client may take to read all that is written; closing waits for that, however little."""
        if self.transport.get_write_buffer_size() == 0:
            return
        if self.transport.is_closing():
            self._start_reader_timer()
        else:
            self.transport.set_write_buffer_limits(high=0)  # calls pause_writing now, resume_writing when all is read

    def _start_reader_timer(self) -> None:
        if self._reader_timer is None:
            self._reader_timer = self.loop.call_later(self._limits.send_timeout, self._cut_off)

    def _stop_reader_timer(self) -> None:
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None

    def _cut_off(self) -> None:
        self._reader_timer = None
        log.info("connection cut off", limit="server.limits.send_timeout", client=self.client and self.client[0])
        self.transport.abort()

    def _expire(self, seconds: float) -> None:
        self._timer = None
        if self._stage != "body" and self._is_answering:  # what follows a running answer has time until its end
            self._start_timer(seconds)
        elif self._stage == "body":
            self._refuse("body_timeout", "the request's body took too long", 408)
        elif self._stage == "headers":
            self._refuse("header_timeout", "the request's headers took too long", 408)
        else:
            self.transport.close()

    def _refuse(self, key: str, said: str, status: int) -> None:
        log.info("connection refused", limit=f"server.limits.{key}", client=self.client and self.client[0])
        self._end_with(over_limit(key, getattr(self._limits, key), said, status=status))

    def _end_with(self, error: AnychipError) -> None:
        """Answer in this request's place, unless an answer is under way, and close."""
        self._is_refused = True
        self._stop_timer()
        if not (self._is_answering and self.cycle.response_started):
            response = error_response(error)
            headers = [*response.raw_headers, (b"connection", b"close")]
            lines = [STATUS_LINE[response.status_code], *(b"%s: %s\r\n" % header for header in headers), b"\r\n"]
            self.transport.write(b"".join([*lines, bytes(response.body)]))
        self._await_the_reader()
        self.transport.close()


__all__ = ["Connection"]
