"""Streams and events with torch.cuda's names: work runs later, in a thread per queue. Knows no op and no memory."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

#: the hardware's queues per card; more streams than that share them and wait for each other
QUEUES = 8

Work = Callable[[], None]


class Clock(Protocol):
    """What a stream needs of the machine that it belongs to."""

    @property
    def fake_events(self) -> bool: ...
    def current_stream(self, index: int | None = None) -> Stream: ...
    def check_process(self) -> None: ...
    def raise_errors(self, index: int) -> None: ...
    def fail(self, index: int, code: int, what: str) -> None: ...


class Queue:
    """One hardware queue: runs work in order, in a thread that starts with the first."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def put(self, work: Work) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="kunlun-queue", daemon=True)
                self._thread.start()
        self._work.put(work)

    def close(self) -> None:
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._work.put(None)
            if thread is not threading.current_thread():  # its last work may have been the last user of the machine
                thread.join()

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            del work  # the waiting thread must not keep tensors alive


class Event:
    """A point in a stream. An event that was never recorded is done."""

    def __init__(self, machine: Clock, enable_timing: bool = False) -> None:
        self._machine = machine
        self._enable_timing = enable_timing
        self._reached: threading.Event | None = None
        self._index = 0
        self._time_s: float | None = None

    def record(self, stream: Stream | None = None) -> None:
        if stream is None:
            stream = self._machine.current_stream()
        self._index = stream.index
        self._reached = reached = threading.Event()

        def reach() -> None:
            self._time_s = time.perf_counter()
            reached.set()

        stream.put(reach)

    def wait(self, stream: Stream | None = None) -> None:
        """Later work of `stream` waits for this event."""
        if stream is None:
            stream = self._machine.current_stream()
        if self._reached is not None and not self._machine.fake_events:
            stream.put(partial(_wait, self._reached))

    def query(self) -> bool:
        return self._reached is None or self._machine.fake_events or self._reached.is_set()

    def synchronize(self) -> None:
        self._machine.check_process()
        if self._reached is not None and not self._machine.fake_events:
            self._reached.wait()
        self._machine.raise_errors(self._index)

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds from this event to `end`."""
        if not (self._enable_timing and end._enable_timing):
            message = "Both events must be created with argument 'enable_timing=True'."
            raise ValueError(message)
        if self._time_s is None or end._time_s is None or not end.query():
            message = "Both events must be completed before calculating elapsed time."
            raise ValueError(message)
        return (end._time_s - self._time_s) * 1000


class Stream:
    """An ordered queue of work on a card.

    Args:
        queue: the hardware queue that it shares; None: the default stream, whose work is done by the host at once.
    """

    def __init__(self, machine: Clock, index: int, queue: Queue | None, priority: int = 0) -> None:
        self.index = index
        self.priority = priority
        self._machine = machine
        self._queue = queue

    @property
    def is_default(self) -> bool:
        return self._queue is None

    def put(self, work: Work) -> None:
        """Run `work` after all that was put before; what it raises becomes a deferred error of the card."""
        self._machine.check_process()
        if self._queue is None:
            work()
        else:
            self._queue.put(lambda: self._run(work))

    def drain(self) -> None:
        """Wait for everything that was put so far."""
        if self._queue is not None:
            done = threading.Event()
            self._queue.put(done.set)
            done.wait()

    def synchronize(self) -> None:
        self._machine.check_process()
        self.drain()
        self._machine.raise_errors(self.index)

    def query(self) -> bool:
        event = Event(self._machine)
        event.record(self)
        return event.query()

    def record_event(self, event: Event | None = None) -> Event:
        event = Event(self._machine) if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        event.wait(self)

    def wait_stream(self, stream: Stream) -> None:
        self.wait_event(stream.record_event())

    def _run(self, work: Work) -> None:
        try:
            work()
        except Exception as error:  # the host hears of any failure at the next synchronize
            self._machine.fail(self.index, 714, f"{type(error).__name__}: {error}")


def _wait(reached: threading.Event) -> None:
    reached.wait()


__all__ = ["QUEUES", "Clock", "Event", "Queue", "Stream", "Work"]
