"""What is known of the worker's numbers when nobody asks it: the last it told. Knows names; knows no process.

Counts go on across workers, so that they never fall; what a worker that is gone said of its present goes with it.
"""

from __future__ import annotations

from collections.abc import Mapping

from anychip.engine.laps import STEP_PARTS

#: numbers that only grow while a worker lives; every other one tells of the present
COUNTS = frozenset(
    {
        "steps",
        "steps_ahead",
        "requests",
        "finished",
        "aborted",
        "failed",
        "retractions",
        "prompt_tokens",
        "cached_tokens",
        "completion_tokens",
        "pages_evicted",
        "step_seconds",
        *(f"{part}_seconds" for part in STEP_PARTS),
    }
)
#: what a worker that isn't there has none of
NOTHING = {"running": 0.0, "waiting": 0.0}


class WorkerStats:
    """The numbers of one service's workers, one after another."""

    def __init__(self) -> None:
        self._before: dict[str, float] = {}  # counts of the workers that are gone
        self._last: dict[str, float] = {}
        self._told_s: float | None = None

    def take(self, values: Mapping[str, float], now_s: float) -> None:
        """What the worker tells just now."""
        self._last, self._told_s = dict(values), now_s

    def worker_ended(self) -> None:
        """Keep its counts, forget the rest."""
        for name in COUNTS & self._last.keys():
            self._before[name] = self._before.get(name, 0.0) + self._last[name]
        self._last, self._told_s = {}, None

    def show(self, now_s: float) -> dict[str, float]:
        """All that is known, and how old it is where a worker lives that has told it."""
        shown = {**NOTHING, **self._last}
        for name, count in self._before.items():
            shown[name] = shown.get(name, 0.0) + count
        if self._told_s is not None:
            shown["stats_age_seconds"] = max(0.0, now_s - self._told_s)
        return shown


__all__ = ["COUNTS", "WorkerStats"]
