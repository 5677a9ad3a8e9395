"""When a worker counts as hung, and what happens then. Knows the recipe's words; watches nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from anychip.recipe.schema import WatchdogSection


@dataclass(frozen=True)
class WatchdogLimits:
    """The recipe's section `server.watchdog`.

    Attributes:
        floor_s: nothing counts as a hang before.
        factor: of the predicted time of a step, after which the step counts as hung.
        load_s: without progress, after which a load does.
        on_hang: restart kills the worker and starts another; report only tells, and forgets it when the worker goes on.
        max_restarts: in a row, without a healthy minute between them; then the service ends.
    """

    floor_s: float = 20.0
    factor: float = 20.0
    load_s: float = 1800.0
    on_hang: Literal["restart", "report"] = "restart"
    max_restarts: int = 8

    @property
    def tick_s(self) -> float:
        """How often the worker beats, and how often it is looked at."""
        return min(1.0, self.floor_s / 8)

    def step_s(self, cost_s: float) -> float:
        """The limit of a step that is predicted to take so long."""
        return max(self.floor_s, self.factor * cost_s)

    @property
    def words(self) -> str:
        """For a person."""
        return (
            f"a step hangs after {self.factor:g} times its predicted seconds, {self.floor_s:g} s at least, "
            f"a load after {self.load_s:g} s without progress: {self.on_hang}, {self.max_restarts} restarts in a row"
        )


def watchdog_limits(section: WatchdogSection) -> WatchdogLimits:
    """The recipe's section as plain numbers."""
    return WatchdogLimits(
        floor_s=float(section.floor),
        factor=section.factor,
        load_s=float(section.load),
        on_hang=section.on_hang,
        max_restarts=section.max_restarts,
    )


__all__ = ["WatchdogLimits", "watchdog_limits"]
