"""The server's view of the engine: submits requests to the worker process, watches it and restarts it.

Knows messages; knows no HTTP and no text.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Literal, NamedTuple

import structlog

from anychip.engine import messages
from anychip.engine.mailbox import Generation
from anychip.engine.request import GenerateRequest, TokenEvent
from anychip.engine.worker_link import WorkerLink
from anychip_sdk.errors import AnychipError, EngineDead, QueueFull, RequestInvalid

State = Literal["loading", "ready", "dead", "restarting"]

log = structlog.get_logger("anychip.engine")


class Backoff(NamedTuple):
    """How long to wait before a worker is started again: doubled at each death, reset after a healthy time."""

    first_s: float = 0.5
    limit_s: float = 30.0
    healthy_s: float = 60.0


class WorkerFailed(AnychipError):
    """The worker's own words, with its exit code."""

    def __init__(self, failure: messages.Failed) -> None:
        super().__init__(failure.message, hint=failure.hint)
        self.exit_code = failure.exit_code


class EngineClient:
    """Belongs to one event loop.

    Args:
        factory: import path of the core's factory, `package.module:callable`.
        argument: its argument, a JSON value.
        env: the worker's environment; None is this process's own.
    """

    def __init__(
        self,
        factory: str,
        argument: object,
        *,
        env: Mapping[str, str] | None = None,
        backoff: Backoff | None = None,
        call_timeout_s: float = 10.0,
    ) -> None:
        self.state: State = "loading"
        self.progress = messages.Progress("starting")
        self.model: messages.ModelFacts | None = None  #: of the worker that became ready last
        self.load_s = 0.0
        self.restarts = 0
        self._factory = (factory, argument)
        self._env = env
        self._backoff = backoff or Backoff()
        self._call_timeout_s = call_timeout_s
        self._link: WorkerLink | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._generations: dict[str, Generation] = {}
        self._calls: dict[int, asyncio.Future[messages.FromWorker]] = {}
        self._numbers = itertools.count(1)
        self._failure: messages.Failed | None = None
        self._ready_s: float | None = None
        self._changed = asyncio.Event()
        self.fatal: asyncio.Future[AnychipError] | None = (
            None  #: done when the first load failed, or no worker can be started
        )

    @property
    def worker_pid(self) -> int | None:
        return None if self._link is None else self._link.pid

    async def start(self) -> None:
        """Start the worker and the watch over it; returns while it still loads."""
        self.fatal = asyncio.get_running_loop().create_future()
        self._supervisor = asyncio.create_task(self._supervise(), name="engine-supervisor")
        self._supervisor.add_done_callback(self._on_supervisor_end)

    async def wait_ready(self) -> None:
        """Return once the worker is ready; raise WorkerFailed if its first load failed."""
        while self.state != "ready":
            if self.fatal is not None and self.fatal.done():
                raise self.fatal.result()
            self._changed.clear()
            await self._changed.wait()

    async def open(self, requests: Sequence[GenerateRequest]) -> Generation:
        """Submit requests that belong together; returns when all are accepted, raises if one is refused."""
        link = self._ready_link()
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

    async def stats(self) -> dict[str, float]:
        reply = await self._call(messages.AskStats)
        assert isinstance(reply, messages.Stats)
        return reply.values

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
        self._set_state("dead")
        self.fail_all(EngineDead("the service is shutting down"))
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
        if self._link is not None:
            await self._link.stop(grace_s)
            self._link.close()
            self._link = None
        self._fail_calls(EngineDead("the service is shutting down"))

    async def _call(self, message: type[messages.AskStats] | type[messages.Flush]) -> messages.FromWorker:
        link = self._ready_link()
        number = next(self._numbers)
        reply = self._calls[number] = asyncio.get_running_loop().create_future()
        link.send(message(number))
        try:
            return await asyncio.wait_for(reply, self._call_timeout_s)
        except asyncio.TimeoutError:
            raise EngineDead(f"the engine gave no answer for {self._call_timeout_s:g} s") from None
        finally:
            self._calls.pop(number, None)

    def _ready_link(self) -> WorkerLink:
        if self.state == "ready" and self._link is not None:
            return self._link
        reason = {"loading": "the model is still loading", "restarting": "the engine is being restarted"}
        raise EngineDead(reason.get(self.state, "the engine is dead"))

    async def _supervise(self) -> None:
        delay_s = self._backoff.first_s
        while True:
            self._failure, self._ready_s = None, None
            self._link = await WorkerLink.launch(self._factory, self._on_message, self._env)
            code = await self._link.wait()
            lived_s = 0.0 if self._ready_s is None else time.monotonic() - self._ready_s
            self._on_death(code)
            if self.fatal is not None and self.fatal.done():
                return
            if lived_s >= self._backoff.healthy_s:
                delay_s = self._backoff.first_s
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, self._backoff.limit_s)
            self._set_state("restarting")

    def _on_supervisor_end(self, task: asyncio.Task[None]) -> None:
        """Without a supervisor there will be no engine: no worker could even be started."""
        error = None if task.cancelled() else task.exception()
        if error is not None and self.fatal is not None and not self.fatal.done():
            self.fatal.set_result(AnychipError(f"no worker can be started: {type(error).__name__}: {error}"))
            self._set_state("dead")

    def _on_death(self, code: int) -> None:
        """The worker is gone: everything that waits for it fails; a worker that was never ready is fatal."""
        assert self._link is not None
        self._link.close()
        failure = self._failure or messages.Failed(f"the engine's process ended with {describe_exit(code)}")
        is_fatal = self.load_s == 0.0
        log.error("worker ended", exit=describe_exit(code), reason=failure.message, restart=not is_fatal)
        self._set_state("dead")
        error = EngineDead(failure.message, hint=failure.hint)
        for generation in list(self._generations.values()):
            generation.fail(error)
        self._generations.clear()
        self._fail_calls(error)
        if is_fatal and self.fatal is not None:
            self.fatal.set_result(WorkerFailed(failure))
        else:
            self.restarts += 1
        self._changed.set()

    def _fail_calls(self, error: EngineDead) -> None:
        for reply in self._calls.values():
            if not reply.done():
                reply.set_exception(error)

    def _set_state(self, state: State) -> None:
        self.state = state
        self._changed.set()

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
            case messages.Stats(call) | messages.Flushed(call):
                reply = self._calls.get(call)
                if reply is not None and not reply.done():
                    reply.set_result(message)
            case messages.Progress():
                self.progress = message
            case messages.Ready():
                self._on_ready(message)
            case messages.Failed():
                self._failure = message

    def _on_ready(self, ready: messages.Ready) -> None:
        self.load_s, self._ready_s = max(ready.load_s, 1e-9), time.monotonic()
        self.model = ready.model
        for warning in ready.model.warnings:
            log.warning(warning)
        self._set_state("ready")

    def _deliver(self, event: TokenEvent) -> None:
        generation = self._generations.get(event.request_id)
        if generation is None:  # aborted meanwhile
            return
        generation.deliver(event)
        if event.finish_reason is not None and event.request_id not in generation.request_ids:
            del self._generations[event.request_id]


def refused(message: messages.Refused) -> AnychipError:
    """The exception that the core raised, on this side."""
    if message.kind == "queue_full":
        return QueueFull(message.message, retry_after_s=message.retry_after_s)
    if message.kind == "invalid":
        return RequestInvalid(message.message, param=message.param, code=message.code, status=message.status)
    return AnychipError(message.message)


def describe_exit(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


__all__ = ["Backoff", "EngineClient", "State", "WorkerFailed", "describe_exit", "refused"]
