"""Do long work outside of the event loop, and let its memory go. Knows threads; knows no request.

Work in Python shares the interpreter with the event loop, however many threads there are. So few threads do it, and
each hands the interpreter over after a millisecond; calls into libraries that keep it to themselves must be short.
"""

from __future__ import annotations

import asyncio
import ctypes
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

#: Work on so many bytes, characters or items is done at once: about a millisecond's.
INLINE_SIZE = 4096
#: A block of so many bytes goes back to the system as soon as it is free.
LARGE_BLOCK = 256 * 1024
#: One may tokenise, which leaves the interpreter to others, while another one reads a body.
THREADS = 2
#: How long a thread keeps the interpreter from one that wants it, in seconds.
SWITCH_S = 0.001
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h

T = TypeVar("T")


class Offload:
    """The threads of one service; they end with the process."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="offload")

    async def run(self, size: int, work: Callable[[], T]) -> T:
        """The work's result, computed here where its size is small, else in a thread."""
        if size <= INLINE_SIZE:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def share_interpreter() -> None:
    """Make threads of this process hand over the interpreter soon; for processes with an event loop of their own."""
    sys.setswitchinterval(SWITCH_S)


def keep_no_large_blocks() -> None:
    """Give large blocks back to the system as soon as they are free; without glibc nothing happens.

    glibc raises its thresholds to the largest block that was ever freed, and then keeps as much in each thread's arena,
    where `malloc_trim` doesn't find it.
    """
    if set_option := _of_glibc("mallopt"):
        set_option(M_MMAP_THRESHOLD, LARGE_BLOCK)
        set_option(M_TRIM_THRESHOLD, LARGE_BLOCK)


def give_memory_back() -> None:
    """Give back the free pages that lie between used ones, as loading leaves them; without glibc nothing happens."""
    if trim := _of_glibc("malloc_trim"):
        trim(0)


def _of_glibc(name: str) -> Callable[..., int] | None:
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None


__all__ = ["INLINE_SIZE", "Offload", "give_memory_back", "keep_no_large_blocks", "share_interpreter"]
