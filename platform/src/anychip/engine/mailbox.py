"""Where the token events of one or more requests arrive and are waited for.

Knows which choices are still open; knows no process and no text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from anychip.engine.request import TokenEvent
from anychip_sdk.errors import AnychipError


class Generation:
    """The running requests of one call; belongs to one event loop and has one reader.

    Args:
        choices: for each request id, how many completions it makes.
        on_abort: told the id of each request that is given up before its end.
        on_stop: told the id and index of each choice that its reader ended, by a stop string.
    """

    def __init__(
        self,
        choices: Mapping[str, int],
        on_abort: Callable[[str], None],
        on_stop: Callable[[str, int], None],
    ) -> None:
        self._open = {request_id: set(range(count)) for request_id, count in choices.items()}
        self._unanswered = set(choices)
        self._on_abort = on_abort
        self._on_stop = on_stop
        self._pending: list[TokenEvent] = []
        self._error: AnychipError | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def request_ids(self) -> list[str]:
        return list(self._open)

    @property
    def is_open(self) -> bool:
        return bool(self._open)

    def accept(self, request_id: str) -> None:
        self._unanswered.discard(request_id)
        self._wake()

    def deliver(self, event: TokenEvent) -> None:
        """Take an event; the last one of a request closes it. What comes after a choice's end is nobody's."""
        if event.index not in self._open.get(event.request_id, ()):
            return
        self._pending.append(event)
        if event.finish_reason is not None:
            self._close(event.request_id, event.index)
        self._wake()

    def fail(self, error: AnychipError, request_id: str | None = None) -> None:
        """Nothing more will come: of the one request if named (it was refused), otherwise of all."""
        if request_id is None:
            self._open.clear()
            self._unanswered.clear()
        else:
            self._open.pop(request_id, None)
            self._unanswered.discard(request_id)
        if self._error is None:
            self._error = error
        self._wake()

    async def accepted(self) -> None:
        """Return once every request is in the queue; raise what refused one of them, with the rest aborted."""
        try:
            while self._unanswered and self._error is None:
                await self._wait()
        except asyncio.CancelledError:
            self.abort()
            raise
        if self._error is not None:
            self.abort()
            raise self._error

    async def next(self) -> list[TokenEvent]:
        """All events that have come since the last call, waiting for the first; empty at the end."""
        while True:
            if self._pending:
                events, self._pending = self._pending, []
                return events
            if self._error is not None:
                raise self._error
            if not self._open:
                return []
            await self._wait()

    def abort(self, request_id: str | None = None) -> None:
        """Give up the one request, or all; does nothing for those that have ended."""
        for given_up in list(self._open) if request_id is None else [request_id]:
            self._unanswered.discard(given_up)
            if self._open.pop(given_up, None) is not None:
                self._on_abort(given_up)

    def stop(self, request_id: str, index: int) -> None:
        """End one choice, whose text is whole; does nothing where it has ended."""
        if index in self._open.get(request_id, ()):
            self._close(request_id, index)
            self._on_stop(request_id, index)

    def _close(self, request_id: str, index: int) -> None:
        left = self._open[request_id]
        left.discard(index)
        if not left:
            del self._open[request_id]

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


__all__ = ["Generation"]
