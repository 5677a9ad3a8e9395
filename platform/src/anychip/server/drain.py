"""Stop a service in order: what runs may finish, what comes is told so, and only then does the port close.

Knows signals' meaning; knows no socket.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from anychip.server.service import Service

#: After the drain limit, streams need a moment to send their error event.
LAST_WORDS_S = 1.0

log = structlog.get_logger("anychip.server")


class Drain:
    """Stops a service at the first call, at once at the second.

    Args:
        close: ends the server; called once nothing runs any more, or nothing may.
        close_at_once: the same without waiting for connections.
    """

    def __init__(self, close: Callable[[], None], close_at_once: Callable[[], None]) -> None:
        self._close = close
        self._close_at_once = close_at_once
        self._service: Service | None = None
        self._drain_s = 0.0
        self._draining: asyncio.Task[None] | None = None

    @property
    def has_begun(self) -> bool:
        return self._draining is not None

    def begin_service(self, service: Service, drain_s: float) -> None:
        """The engine is ready: from now on there may be requests to wait for."""
        self._service, self._drain_s = service, drain_s
        if self.has_begun:
            service.drain()

    def stop(self) -> None:
        if self._draining is not None:
            log.warning("stopping at once")
            self._end_all()
            self._close_at_once()
            return
        log.info("stopping", drain_s=self._drain_s)
        if self._service is not None:
            self._service.drain()
        self._draining = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        try:
            if self._service is not None:
                await asyncio.wait_for(self._service.is_idle.wait(), self._drain_s)
        except asyncio.TimeoutError:
            self._end_all()
        self._close()

    def _end_all(self) -> None:
        if self._service is not None:
            self._service.end_all()


__all__ = ["LAST_WORDS_S", "Drain"]
