"""How fast a device's memory is just now. Knows copies and a clock; knows no kernel.

A host may move virtual cores about: while they share a way to memory it is half as fast as while each has its own, and
it stays so for seconds or for minutes. So whatever is timed is timed between two looks at the memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from anychip_sdk.device import Device
from anychip_sdk.speeds import is_near

COPIED_BYTES = 96 << 20  #: more than caches hold
COPIES = 4  #: of which the fastest counts
TRIES = 4

T = TypeVar("T")


@dataclass(frozen=True)
class Steady(Generic[T]):
    """A result, and how fast memory copied before and after it was measured."""

    result: T
    memory_bytes_per_s: float


class MemoryClock:
    """Two buffers on the device, one copied to the other."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._source, self._target = (device.alloc(COPIED_BYTES) for _ in range(2))
        self._source.fill_(1)
        self._target.fill_(2)

    def bytes_per_s(self) -> float:
        """Now."""
        return COPIED_BYTES / min(self._copy_s() for _ in range(COPIES))

    def steadily(self, run: Callable[[], T]) -> Steady[T]:
        """The result of a run during which memory stayed as fast as it was; of the last one if it never does."""
        for _ in range(TRIES):
            before = self.bytes_per_s()
            result = run()
            behind = self.bytes_per_s()
            if is_near(behind, before):
                break
        return Steady(result, (before + behind) / 2)

    def close(self) -> None:
        for buffer in (self._source, self._target):
            self._device.free(buffer)

    def _copy_s(self) -> float:
        began_s = time.perf_counter()
        self._device.copy(self._target, self._source)
        self._device.synchronize()
        return time.perf_counter() - began_s


__all__ = ["MemoryClock", "Steady"]
