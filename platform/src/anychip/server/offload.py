"""Do long work outside of the event loop, and give its memory back. Knows threads; knows no request.

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
#: Work on more leaves memory that is worth asking back from the allocator.
TRIM_SIZE = 256 * 1024
#: One may tokenise, which leaves the interpreter to others, while another one reads a body.
THREADS = 2
#: How long a thread keeps the interpreter from one that wants it, in seconds.
SWITCH_S = 0.001

T = TypeVar("T")


class Offload:
    """The threads of one service; they end with the process."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="offload")

    async def run(self, size: int, work: Callable[[], T]) -> T:
        """The work's result, computed here where its size is small, else in a thread."""
        if size <= INLINE_SIZE:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._threads, _worked, size, work)


def _worked(size: int, work: Callable[[], T]) -> T:
    try:
        return work()
    finally:
        if size > TRIM_SIZE:
            give_memory_back()


def share_interpreter() -> None:
    """Make threads of this process hand over the interpreter soon; for processes with an event loop of their own."""
    sys.setswitchinterval(SWITCH_S)


def give_memory_back() -> None:
    """Ask the C library to return free pages to the system; without glibc nothing happens."""
    if sys.platform != "linux":
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


__all__ = ["INLINE_SIZE", "Offload", "give_memory_back", "share_interpreter"]
