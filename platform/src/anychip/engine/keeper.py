"""Keeps a worker running: starts it, watches it, and starts another where it ends or hangs.

Knows one worker at a time and how the service stands; knows no request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Literal

import structlog

from anychip.engine import messages
from anychip.engine.failures import WorkerFailed, describe_exit
from anychip.engine.restarts import Backoff, Restarts
from anychip.engine.watchdog import watch_over
from anychip.engine.worker_link import WorkerLink
from anychip.recipe.watchdog import WatchdogLimits
from anychip_sdk.errors import AnychipError, EngineDead

State = Literal["loading", "ready", "hung", "dead", "restarting"]
NOT_READY_EXIT = 5  #: of a service whose engine hung until it was given up

log = structlog.get_logger("anychip.engine")


class WorkerKeeper:
    """Belongs to one event loop.

    Args:
        factory: import path of the core's factory and its argument, a JSON value.
        env: the worker's environment; None is this process's own.
        limits: when a worker counts as hung, and how often one is started again.
        backoff: how long to wait before that.
        on_message: told each message that is not about the worker itself.
        on_tick: called at each look at the worker.
        on_failure: told why everything that waits for the worker waits in vain, when it hangs or has ended.
    """

    def __init__(
        self,
        factory: tuple[str, object],
        env: Mapping[str, str] | None,
        limits: WatchdogLimits,
        backoff: Backoff,
        *,
        on_message: Callable[[messages.FromWorker], None],
        on_tick: Callable[[], None],
        on_failure: Callable[[EngineDead], None],
    ) -> None:
        self.state: State = "loading"
        self.problem = ""  #: why the state is hung, dead or restarting
        self.progress = messages.Progress("starting")  #: of the load that goes on, or went on last
        self.model: messages.ModelFacts | None = None  #: of the worker that became ready last
        self.load_s = 0.0
        self.restarts = 0
        self.hangs = 0
        self.link: WorkerLink | None = None
        #: done when the first load failed, no worker can be started, or too many ended in a row
        self.fatal: asyncio.Future[AnychipError] | None = None
        self.on_tick = on_tick
        self._on_message = on_message
        self._on_failure = on_failure
        self._factory = factory
        self._env = env
        self._limits = limits
        self._restarts = Restarts(backoff, limits.max_restarts)
        self._supervisor: asyncio.Task[None] | None = None
        self._failure: messages.Failed | None = None
        self._ready_s: float | None = None
        self._changed = asyncio.Event()

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

    def ready_link(self) -> WorkerLink:
        """The worker that takes requests; raises EngineDead, with the reason, while there is none."""
        if self.state == "ready" and self.link is not None:
            return self.link
        if self.state == "loading":
            raise EngineDead("the model is still loading")
        if self.state == "hung":
            raise EngineDead(self.problem)
        state = "the engine is being restarted" if self.state == "restarting" else "the engine is dead"
        raise EngineDead(f"{state}: {self.problem}" if self.problem else state)

    async def close(self, grace_s: float) -> None:
        """End the worker and remove what belongs to it."""
        self._set_state("dead")
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
        if self.link is not None:
            await self.link.stop(grace_s)
            self.link.close()
            self.link = None

    async def _supervise(self) -> None:
        while True:
            self._failure, self._ready_s = None, None
            self.progress = messages.Progress("starting")
            self.link = await WorkerLink.launch(self._factory, self._take, self._env, self._limits.tick_s)
            code = await self._while_watched(self.link)
            healthy_s = 0.0 if self._ready_s is None else time.monotonic() - self._ready_s
            delay_s = self._on_death(code, healthy_s)
            if delay_s is None:
                return
            await asyncio.sleep(delay_s)
            self._set_state("restarting")

    async def _while_watched(self, link: WorkerLink) -> int:
        """The worker's exit code, at its end."""
        watch = asyncio.create_task(watch_over(link, self._limits, self), name="watchdog")
        watch.add_done_callback(_log_failure)
        try:
            return await link.wait()
        finally:
            watch.cancel()

    def loading(self) -> str | None:
        """For the watch: how far the load is; None once the worker is ready."""
        progress = self.progress
        return f"{progress.stage} {progress.done}/{progress.total}" if self._ready_s is None else None

    def on_hang(self, why: str) -> bool:
        """From the watch: everything that waits for the worker fails, and nothing new is sent to it."""
        self.problem = f"the engine hangs: {why}"
        if self.state == "hung":
            return False
        self.hangs += 1
        self._failure = messages.Failed(self.problem, exit_code=NOT_READY_EXIT)
        self._set_state("hung")
        self._on_failure(EngineDead(self.problem))
        return True

    def on_recovery(self) -> None:
        """From the watch: it goes on."""
        self.problem, self._failure = "", None
        is_loading: State = "restarting" if self.load_s else "loading"
        self._set_state("ready" if self._ready_s is not None else is_loading)
        log.warning("the worker that hung goes on", state=self.state)

    def _on_supervisor_end(self, task: asyncio.Task[None]) -> None:
        """Without a supervisor there will be no engine: no worker could even be started."""
        error = None if task.cancelled() else task.exception()
        if error is not None and self.fatal is not None and not self.fatal.done():
            self.fatal.set_result(AnychipError(f"no worker can be started: {type(error).__name__}: {error}"))
            self._set_state("dead")

    def _on_death(self, code: int, healthy_s: float) -> float | None:
        """The worker is gone. How long until the next one is started; None: there is none.

        There is none after a worker that was never ready, which would fail again, and after too many in a row.
        """
        assert self.link is not None
        failure = self._failure or messages.Failed(f"the engine's process ended with {describe_exit(code)}")
        delay_s = self._restarts.after(healthy_s) if self.load_s else None
        stacks = self.link.stacks() if self.state != "hung" else ""  # of a hang they are told already
        said = {"stacks": stacks} if stacks else {}
        log.error("worker ended", exit=describe_exit(code), reason=failure.message, restart_in_s=delay_s, **said)
        self.link.close()
        self.problem = failure.message
        self._set_state("dead")
        self._on_failure(EngineDead(failure.message, hint=failure.hint))
        if delay_s is not None:
            self.restarts += 1
        elif self.fatal is not None:
            self.fatal.set_result(WorkerFailed(self._last_words(failure)))
        self._changed.set()
        return delay_s

    def _last_words(self, failure: messages.Failed) -> messages.Failed:
        """Why there is no engine any more."""
        if not self.load_s:
            return failure
        count = self._restarts.in_a_row + 1
        message = f"the engine ended {count} times without a healthy minute between; the last time: {failure.message}"
        return messages.Failed(message, failure.hint, failure.exit_code)

    def _set_state(self, state: State) -> None:
        self.state = state
        self._changed.set()

    def _take(self, message: messages.FromWorker) -> None:
        match message:
            case messages.Progress():
                self.progress = message
            case messages.Ready():
                self._on_ready(message)
            case messages.Failed():
                self._failure = message
            case _:
                self._on_message(message)

    def _on_ready(self, ready: messages.Ready) -> None:
        self.load_s, self._ready_s = max(ready.load_s, 1e-9), time.monotonic()
        self.model, self.problem = ready.model, ""
        for warning in ready.model.warnings:
            log.warning(warning)
        self._set_state("ready")


def _log_failure(watch: asyncio.Task[None]) -> None:
    if not watch.cancelled() and (error := watch.exception()) is not None:
        log.error("the watch over the worker failed: its hangs go unnoticed", exc_info=error)


__all__ = ["State", "WorkerKeeper"]
