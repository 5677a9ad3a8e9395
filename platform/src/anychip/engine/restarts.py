"""How long to wait before a worker is started again, and when to give up. Knows times; starts nothing."""

from __future__ import annotations

from typing import NamedTuple


class Backoff(NamedTuple):
    """The wait is doubled at each death, and reset after a healthy time."""

    first_s: float = 0.5
    limit_s: float = 30.0
    healthy_s: float = 60.0


class Restarts:
    """The restarts of one service's worker.

    Args:
        most: in a row, without a healthy time between them.
    """

    def __init__(self, backoff: Backoff, most: int) -> None:
        self._backoff = backoff
        self._most = most
        self._delay_s = backoff.first_s
        self.in_a_row = 0

    def after(self, healthy_s: float) -> float | None:
        """The wait before the next start, after a worker that was ready for so long; None: there is none any more."""
        if healthy_s >= self._backoff.healthy_s:
            self._delay_s, self.in_a_row = self._backoff.first_s, 0
        if self.in_a_row >= self._most:
            return None
        self.in_a_row += 1
        delay_s, self._delay_s = self._delay_s, min(self._delay_s * 2, self._backoff.limit_s)
        return delay_s


__all__ = ["Backoff", "Restarts"]
