"""Memory straight from the system, in huge pages where it grants them. Knows pages; knows no device."""

from __future__ import annotations

import mmap
from contextlib import suppress
from threading import Lock
from weakref import ref

import torch

HUGE_BYTES = 2 << 20
#: what an arena asks the system for at a time
AREA_BYTES = 64 << 20


class Arena:
    """Pieces of memory side by side, so that small ones lie in huge pages too.

    The arena itself keeps nothing alive: an area returns to the system with the last of its pieces.
    """

    def __init__(self, alignment: int = 64) -> None:
        self._alignment = alignment
        self._area: ref[mmap.mmap] | None = None
        self._used = 0
        self._lock = Lock()

    def take(self, nbytes: int) -> torch.Tensor:
        """Zeroed bytes.

        Raises:
            OSError: the system has no more.
        """
        with self._lock:
            area = None if self._area is None else self._area()
            if area is None or self._used + nbytes > len(area):
                area = _area(max(nbytes + HUGE_BYTES, AREA_BYTES))
                self._area, self._used = ref(area), -_address(area) % HUGE_BYTES
            piece = torch.frombuffer(area, dtype=torch.uint8)[self._used :][:nbytes]
            self._used += nbytes + -nbytes % self._alignment
        return piece


def mapped(nbytes: int, alignment: int = 64) -> torch.Tensor:
    """Zeroed bytes that cost nothing until they are written.

    What is large begins where a huge page can.

    Raises:
        OSError: the system has no more.
    """
    boundary = max(alignment, HUGE_BYTES if nbytes >= HUGE_BYTES else 0)
    area = _area(max(1, nbytes + max(0, boundary - mmap.PAGESIZE)))
    return torch.frombuffer(area, dtype=torch.uint8)[-_address(area) % boundary :][:nbytes]


def _area(nbytes: int) -> mmap.mmap:
    area = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without huge pages refuses the advice; small ones work too
            area.madvise(mmap.MADV_HUGEPAGE)
    return area


def _address(area: mmap.mmap) -> int:
    return torch.frombuffer(area, dtype=torch.uint8).data_ptr()


__all__ = ["HUGE_BYTES", "Arena", "mapped"]
