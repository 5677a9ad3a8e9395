"""Memory straight from the system, in huge pages where it grants them. Knows pages; knows no device."""

from __future__ import annotations

import mmap
from contextlib import suppress

import torch

HUGE_BYTES = 2 << 20


def mapped(nbytes: int, alignment: int = 64) -> torch.Tensor:
    """Zeroed bytes that cost nothing until they are written.

    What is large begins where a huge page can.

    Raises:
        OSError: the system has no more.
    """
    boundary = max(alignment, HUGE_BYTES if nbytes >= HUGE_BYTES else 0)
    slack = max(0, boundary - mmap.PAGESIZE)
    area = mmap.mmap(-1, max(1, nbytes + slack), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without huge pages refuses the advice; small ones work too
            area.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(area, dtype=torch.uint8)
    offset = -whole.data_ptr() % boundary
    return whole[offset : offset + nbytes]


__all__ = ["HUGE_BYTES", "mapped"]
