"""Where the time of steps goes, part by part. Knows names and a clock; knows nothing of what is timed."""

from __future__ import annotations

import time

PARTS = ("schedule", "inputs", "forward", "sample", "commit")


class Laps:
    """Seconds of each part, added up over all steps."""

    def __init__(self) -> None:
        self.totals_s = dict.fromkeys(PARTS, 0.0)
        self._start_s = self._last_s = 0.0

    @property
    def since_start_s(self) -> float:
        """From the last start to the last lap."""
        return self._last_s - self._start_s

    def start(self) -> None:
        self._start_s = self._last_s = time.perf_counter()

    def lap(self, part: str) -> None:
        """Count the time since the last call as that part's."""
        now_s = time.perf_counter()
        self.totals_s[part] += now_s - self._last_s
        self._last_s = now_s


__all__ = ["PARTS", "Laps"]
