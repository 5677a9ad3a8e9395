"""Where the threads of a worker are, written by its process on a signal or a fatal error and read by the server.

Knows neither what hangs nor why. Python's faulthandler writes them without Python's lock, so a worker that keeps it
can still be asked.
"""

from __future__ import annotations

import faulthandler
import os
import signal

DUMP_SIGNAL = signal.SIGUSR1
MAX_BYTES = 64 * 1024  #: that are read at once


def write_stacks_to(descriptor: int) -> None:
    """In the worker: from now on the signal and fatal errors write the stacks of all threads there."""
    faulthandler.register(DUMP_SIGNAL, file=descriptor, all_threads=True, chain=False)
    faulthandler.enable(file=descriptor, all_threads=True)


def read_stacks(descriptor: int, start: int = 0) -> str:
    """In the server: what has been written there behind so many bytes."""
    return os.pread(descriptor, MAX_BYTES, start).decode(errors="replace")


__all__ = ["DUMP_SIGNAL", "read_stacks", "write_stacks_to"]
