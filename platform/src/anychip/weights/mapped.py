"""A file mapped into memory, read piece by piece. Knows pages of the operating system; knows no format.

Pages that a read has touched count as the process's memory until they are dropped, so each read drops those of
the read before: the peak is one tensor, however large the file. Dropped pages stay in the system's file cache.
"""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import numpy.typing as npt

from anychip.weights.files import Unreadable, not_a_file, read_head

LFS_MARK = b"version https://git-lfs.github.com/spec"


class MappedFile:
    """Read-only bytes of a file. Arrays that were handed out stay valid after `close`, until they are dropped."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._map: mmap.mmap | None = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._touched: tuple[int, int] | None = None

    def __len__(self) -> int:
        return len(self._open())

    def window(self, start: int, nbytes: int) -> npt.NDArray[np.uint8]:
        """A view of some bytes; the pages of the window before are released first."""
        self._release()
        first = start // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        self._touched = (first, start + nbytes - first)
        return np.frombuffer(self._open(), dtype=np.uint8, count=nbytes, offset=start)

    def close(self) -> None:
        """Let go of the file; the mapping itself ends with the last array that looks into it."""
        self._touched = None
        self._map = None

    def _open(self) -> mmap.mmap:
        if self._map is None:
            raise ValueError("the checkpoint is closed")
        return self._map

    def _release(self) -> None:
        # a platform without madvise only keeps the pages longer
        if self._touched is not None and hasattr(mmap, "MADV_DONTNEED"):
            start, nbytes = self._touched
            if nbytes:
                self._open().madvise(mmap.MADV_DONTNEED, start, nbytes)
        self._touched = None


def unreadable(path: Path) -> str | None:
    """Why a file can't hold weights at all: missing, unreadable, empty, or a pointer that git left in its place."""
    reason = not_a_file(path)
    if reason is not None:
        return f"{path.name} {reason}"
    try:
        head = read_head(path, len(LFS_MARK))
    except Unreadable as error:
        return f"{path.name} {error}"
    if not head:
        return f"{path.name} is empty (0 bytes)"
    if head == LFS_MARK:
        return f"{path.name} is a Git LFS pointer, not the weights; run `git lfs pull` in its repository"
    return None


__all__ = ["MappedFile", "unreadable"]
