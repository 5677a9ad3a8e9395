"""Where time goes, part by part. Knows names and a clock; knows nothing of what is timed."""

from __future__ import annotations

import time

#: of the host's time in a step. "inputs" and "forward" are what it takes to submit them where a device computes later,
#: "sample" is the wait for the tokens then; with overlap the first three are those of the step behind
STEP_PARTS = ("schedule", "inputs", "forward", "sample", "commit")


class Laps:
    """Seconds of each part, added up; the clock runs from the start.

    Args:
        parts: that count as 0 until they have a lap.
    """

    def __init__(self, parts: tuple[str, ...] = ()) -> None:
        self.totals_s = dict.fromkeys(parts, 0.0)
        self.start()

    def start(self) -> None:
        self._last_s = time.perf_counter()

    def lap(self, part: str) -> None:
        """Count the time since the last call as that part's."""
        now_s = time.perf_counter()
        self.totals_s[part] = self.totals_s.get(part, 0.0) + now_s - self._last_s
        self._last_s = now_s


__all__ = ["STEP_PARTS", "Laps"]
