"""The watch over one worker: looks at it again and again, tells when it hangs, and ends it where it shall.

Knows one worker's process; knows no request.
"""

from __future__ import annotations

import asyncio
import signal
import time
from typing import Protocol

import structlog

from anychip.engine.watch import Signs, Watch
from anychip.engine.worker_link import WorkerLink
from anychip.recipe.watchdog import WatchdogLimits

log = structlog.get_logger("anychip.engine")


class Watched(Protocol):
    """What the watch asks of whoever the worker works for, and tells it."""

    def loading(self) -> str | None:
        """How far the load is, in words that change as it gets on; None once the worker is ready."""

    def on_tick(self) -> None:
        """The watch has looked again."""

    def on_hang(self, why: str) -> bool:
        """The worker hangs, at each look again; whether this is new."""

    def on_recovery(self) -> None:
        """A worker that hung goes on."""


async def watch_over(link: WorkerLink, limits: WatchdogLimits, watched: Watched) -> None:
    """Watch until cancelled, or until the worker was killed for a hang."""
    watch, is_hung = Watch(limits), False
    while True:
        await asyncio.sleep(limits.tick_s)
        watched.on_tick()
        why = watch.look(_signs(link, watched.loading()), time.monotonic())
        if why is not None:
            is_hung = True
            if watched.on_hang(why) and await _tell(link, why, limits):
                return
        elif is_hung:
            is_hung = False
            watched.on_recovery()


async def _tell(link: WorkerLink, why: str, limits: WatchdogLimits) -> bool:
    """Log where its threads are, and end it where that is wanted; whether it was."""
    ends = limits.on_hang == "restart"
    stacks = await link.dump_stacks(resume=ends)
    log.error("worker hangs", reason=why, on_hang=limits.on_hang, pid=link.pid, stacks=stacks)
    if ends:
        link.signal(signal.SIGKILL)
    return ends


def _signs(link: WorkerLink, loading: str | None) -> Signs:
    return Signs(link.pulse(), link.is_stopped, loading)


__all__ = ["Watched", "watch_over"]
