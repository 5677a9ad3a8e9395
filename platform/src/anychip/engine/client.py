"""The server's view of the engine: submits requests to the worker process and hands back what it says of them.

Knows messages; knows no HTTP, no text, and nothing of how a worker is kept running.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Mapping, Sequence

from anychip.engine import messages
from anychip.engine.failures import WorkerFailed, refused
from anychip.engine.keeper import State, WorkerKeeper
from anychip.engine.mailbox import Generation
from anychip.engine.request import GenerateRequest, TokenEvent
from anychip.engine.restarts import Backoff
from anychip.engine.worker_link import WorkerLink
from anychip.engine.worker_stats import WorkerStats
from anychip.recipe.watchdog import WatchdogLimits
from anychip_sdk.errors import AnychipError, EngineDead

PERIODIC = 0  #: the call by which statistics are asked for at each look at the worker


class EngineClient:
    """Belongs to one event loop.

    Args:
        factory: import path of the core's factory, `package.module:callable`.
        argument: its argument, a JSON value.
        env: the worker's environment; None is this process's own.
        limits: when a worker counts as hung, and how often one is started again.
    """

    def __init__(
        self,
        factory: str,
        argument: object,
        *,
        env: Mapping[str, str] | None = None,
        backoff: Backoff | None = None,
        limits: WatchdogLimits | None = None,
        call_timeout_s: float = 10.0,
    ) -> None:
        self._keeper = WorkerKeeper(
            (factory, argument),
            env,
            limits or WatchdogLimits(),
            backoff or Backoff(),
            on_message=self._on_message,
            on_tick=self._ask_for_stats,
            on_failure=self._on_failure,
        )
        self._call_timeout_s = call_timeout_s
        self._generations: dict[str, Generation] = {}
        self._calls: dict[int, asyncio.Future[messages.FromWorker]] = {}
        self._numbers = itertools.count(PERIODIC + 1)
        self._stats = WorkerStats()
        self._is_asked = False  # for statistics, at a look

    @property
    def state(self) -> State:
        return self._keeper.state

    @property
    def problem(self) -> str:
        """Why the state is hung, dead or restarting."""
        return self._keeper.problem

    @property
    def progress(self) -> messages.Progress:
        """Of the load that goes on, or went on last."""
        return self._keeper.progress

    @property
    def model(self) -> messages.ModelFacts | None:
        """Of the worker that became ready last."""
        return self._keeper.model

    @property
    def load_s(self) -> float:
        return self._keeper.load_s

    @property
    def restarts(self) -> int:
        return self._keeper.restarts

    @property
    def hangs(self) -> int:
        return self._keeper.hangs

    @property
    def fatal(self) -> asyncio.Future[AnychipError] | None:
        """Done when there is no engine and will be none: the first load failed, say. None before the start."""
        return self._keeper.fatal

    @property
    def worker_pid(self) -> int | None:
        return None if self._link is None else self._link.pid

    @property
    def _link(self) -> WorkerLink | None:
        return self._keeper.link

    async def start(self) -> None:
        """Start the worker and the watch over it; returns while it still loads."""
        await self._keeper.start()

    async def wait_ready(self) -> None:
        """Return once the worker is ready; raise WorkerFailed if its first load failed."""
        await self._keeper.wait_ready()

    async def open(self, requests: Sequence[GenerateRequest]) -> Generation:
        """Submit requests that belong together; returns when all are accepted, raises if one is refused."""
        link = self._keeper.ready_link()
        generation = Generation({request.id: request.params.n for request in requests}, self.abort, self.stop)
        for request in requests:
            self._generations[request.id] = generation
            link.send(messages.Submit(request))
        await generation.accepted()
        return generation

    async def generate(self, request: GenerateRequest) -> AsyncIterator[TokenEvent]:
        """The events of one request; leaving the iterator early aborts it within one step."""
        generation = await self.open([request])
        try:
            while events := await generation.next():
                for event in events:
                    yield event
        finally:
            generation.abort()

    def abort(self, request_id: str) -> None:
        """Give a request up; unknown and finished ones are no error."""
        if self._generations.pop(request_id, None) is not None and self._link is not None:
            self._link.send(messages.Abort(request_id))

    def stop(self, request_id: str, index: int) -> None:
        """One completion's text is whole; the worker computes it no further."""
        generation = self._generations.get(request_id)
        if generation is None:
            return
        if request_id not in generation.request_ids:
            del self._generations[request_id]
        if self._link is not None:
            self._link.send(messages.Stop(request_id, index))

    async def stats(self, patience_s: float | None = None) -> dict[str, float]:
        """The engine's numbers, asked for now; raises EngineDead where it doesn't answer in time."""
        await self._call(messages.AskStats, patience_s)
        return self.last_stats()

    def last_stats(self) -> dict[str, float]:
        """What the engine told last, with its age; asked for at each look. Counts go on across restarts."""
        return self._stats.show(time.monotonic())

    async def flush_cache(self) -> bool:
        """Empty the prefix cache; False where requests are running."""
        reply = await self._call(messages.Flush)
        assert isinstance(reply, messages.Flushed)
        return reply.done

    def fail_all(self, error: AnychipError) -> None:
        """End every running request with this error, in the worker too."""
        for request_id, generation in list(self._generations.items()):
            self.abort(request_id)
            generation.fail(error)

    async def close(self, grace_s: float = 2.0) -> None:
        """End the worker and remove what belongs to it; running requests fail."""
        error = EngineDead("the service is shutting down")
        self.fail_all(error)
        await self._keeper.close(grace_s)
        self._on_failure(error)

    async def _call(
        self, message: type[messages.AskStats] | type[messages.Flush], patience_s: float | None = None
    ) -> messages.FromWorker:
        link, limit_s = self._keeper.ready_link(), patience_s or self._call_timeout_s
        number = next(self._numbers)
        reply = self._calls[number] = asyncio.get_running_loop().create_future()
        link.send(message(number))
        try:
            return await asyncio.wait_for(reply, limit_s)
        except asyncio.TimeoutError:
            raise EngineDead(f"the engine gave no answer for {limit_s:g} s") from None
        finally:
            self._calls.pop(number, None)

    def _ask_for_stats(self) -> None:
        """One question at a time: a step may be long."""
        if self.state == "ready" and self._link is not None and not self._is_asked:
            self._is_asked = True
            self._link.send(messages.AskStats(PERIODIC))

    def _on_failure(self, error: EngineDead) -> None:
        """The worker hangs or has ended: nothing that waits for it will come."""
        self.fail_all(error)
        for reply in self._calls.values():
            if not reply.done():
                reply.set_exception(error)
        if self.state == "dead":
            self._stats.worker_ended()
            self._is_asked = False

    def _on_message(self, message: messages.FromWorker) -> None:
        match message:
            case messages.Events(events):
                for event in events:
                    self._deliver(event)
            case messages.Accepted(request_id):
                if generation := self._generations.get(request_id):
                    generation.accept(request_id)
            case messages.Refused():
                if generation := self._generations.pop(message.request_id, None):
                    generation.fail(refused(message), message.request_id)
            case messages.Stats(call):
                self._stats.take(message.values, time.monotonic())
                self._is_asked = self._is_asked and call != PERIODIC
                self._answer(call, message)
            case messages.Flushed(call):
                self._answer(call, message)

    def _answer(self, call: int, message: messages.FromWorker) -> None:
        reply = self._calls.get(call)
        if reply is not None and not reply.done():
            reply.set_result(message)

    def _deliver(self, event: TokenEvent) -> None:
        generation = self._generations.get(event.request_id)
        if generation is None:  # aborted meanwhile
            return
        generation.deliver(event)
        if event.finish_reason is not None and event.request_id not in generation.request_ids:
            del self._generations[event.request_id]


__all__ = ["EngineClient", "State", "WorkerFailed"]
