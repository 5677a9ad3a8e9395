"""When a worker counts as hung. Knows what it shows of itself and a clock; knows no process and no message.

Four signs, each with its limit: a process that is stopped, a load without progress, a turn of the loop that lasts too
long, and no heartbeat while the loop rests. A worker in a turn may be silent: a kernel may keep Python's lock.
"""

from __future__ import annotations

from typing import NamedTuple

from anychip.engine.pulse import Reading
from anychip.recipe.watchdog import WatchdogLimits


class Signs(NamedTuple):
    """What is seen of a worker at one moment.

    Attributes:
        pulse: what it shows.
        is_stopped: its process is stopped, by a signal or a debugger.
        loading: how far its load is, in any words that change when it gets on; None once it has loaded.
    """

    pulse: Reading
    is_stopped: bool = False
    loading: str | None = None


class Watch:
    """Looked at one worker so far. Time in which the watch itself didn't run counts as two ticks: it blames nobody."""

    def __init__(self, limits: WatchdogLimits) -> None:
        self._limits = limits
        self._last_s: float | None = None
        self._seen: Signs | None = None
        self._silent_s = self._stopped_s = self._turn_s = self._loading_s = 0.0

    def look(self, signs: Signs, now_s: float) -> str | None:
        """Why the worker counts as hung; None where it doesn't."""
        seen, self._seen = self._seen, signs
        passed_s = 0.0 if self._last_s is None else min(now_s - self._last_s, 2 * self._limits.tick_s)
        self._last_s = now_s
        if seen is None:
            return None
        self._silent_s = self._silent_s + passed_s if signs.pulse.beats == seen.pulse.beats else 0.0
        self._turn_s = self._turn_s + passed_s if signs.pulse.turn == seen.pulse.turn else 0.0
        self._loading_s = self._loading_s + passed_s if signs.loading == seen.loading else 0.0
        self._stopped_s = self._stopped_s + passed_s if signs.is_stopped else 0.0
        return self._verdict(signs)

    def _verdict(self, signs: Signs) -> str | None:
        limits = self._limits
        if self._stopped_s >= limits.floor_s:
            return f"its process has been stopped for {_seconds(self._stopped_s)}, by a signal or a debugger"
        if signs.loading is not None:
            if self._loading_s >= limits.load_s:
                since = f"for {_seconds(self._loading_s)}, at {signs.loading}"
                return f"its load has made no progress {since}; the limit is {_seconds(limits.load_s)}"
            return None
        limit_s = limits.step_s(signs.pulse.cost_s)
        if signs.pulse.turn and self._turn_s >= limit_s:
            return f"a step has been running for {_seconds(self._turn_s)}; its limit is {_seconds(limit_s)}"
        if not signs.pulse.turn and self._silent_s >= limits.floor_s:
            return f"there has been no heartbeat for {_seconds(self._silent_s)}"
        return None


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value < 10 else f"{value:.0f} s"


__all__ = ["Signs", "Watch"]
