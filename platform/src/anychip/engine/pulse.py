"""What a worker shows of itself from outside its messages: a few numbers in memory that the server reads as well.

Knows neither deadlines nor what is computed. The server needs no answer for them, so a worker that is stopped, waits
for ever or keeps Python's lock shows it by numbers that stand still.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import tempfile
import threading
import time
from typing import NamedTuple

BEATS, TURN, COST_S = range(3)
NUMBERS = struct.Struct("ddd")


class Pulse:
    """The worker's side. Writing costs about a tenth of a microsecond.

    Args:
        descriptor: of memory shared with the server, as `shared_memory` makes it; None: nobody else reads it.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        memory = bytearray(NUMBERS.size) if descriptor is None else mmap.mmap(descriptor, NUMBERS.size)
        self._numbers = memoryview(memory).cast("d")
        self._turns = 0

    def turn(self) -> None:
        """The loop begins to work: it takes a message, or makes a step."""
        self._turns += 1
        self._numbers[TURN] = self._turns

    def rest(self) -> None:
        """The loop has nothing to do and waits for a message."""
        self._numbers[TURN] = 0

    def expect(self, seconds: float) -> None:
        """How long the work of this turn is predicted to take."""
        self._numbers[COST_S] = seconds

    def beat(self) -> None:
        self._numbers[BEATS] += 1

    def beat_on(self, interval_s: float) -> None:
        """Beat in a thread of its own from now on."""

        def run() -> None:
            while True:
                self.beat()
                time.sleep(interval_s)

        threading.Thread(target=run, name="pulse", daemon=True).start()


class Reading(NamedTuple):
    """The numbers as they are now.

    Attributes:
        beats: counts up while any thread of the worker runs Python.
        turn: of the loop, counting up; 0 while it waits for messages.
        cost_s: what the turn's work is predicted to take.
    """

    beats: float = 0.0
    turn: float = 0.0
    cost_s: float = 0.0


def read_pulse(descriptor: int) -> Reading:
    """The server's side."""
    return Reading(*NUMBERS.unpack(os.pread(descriptor, NUMBERS.size, 0)))


def shared_memory(name: str, size: int = 0) -> int:
    """The descriptor of an empty file that has no path and takes no room on a disk, where the system offers that."""
    if sys.platform == "linux":
        descriptor = os.memfd_create(name)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.truncate(descriptor, size)
    return descriptor


__all__ = ["NUMBERS", "Pulse", "Reading", "read_pulse", "shared_memory"]
