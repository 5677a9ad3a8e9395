"""Streams with a real thread each: work runs later, in order, and its errors show at a synchronize. Knows no memory."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from anychip_sdk.device import Event, Stream


class Work(NamedTuple):
    """One entry of a stream's queue."""

    name: str
    run: Callable[[], None]
    finished: Callable[[], None]  #: called whether it ran or failed


class WorkerEvent(Event):
    """A point in a stream; done when the stream's thread has come there."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._is_done = False
        self._time_s = 0.0

    def reach(self) -> None:
        """The stream's thread is here."""
        with self._changed:
            self._time_s = time.perf_counter()
            self._is_done = True
            self._changed.notify_all()

    def query(self) -> bool:
        with self._changed:
            return self._is_done

    def synchronize(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_done)

    def elapsed_s(self, since: Event) -> float:
        if not isinstance(since, WorkerEvent):
            message = f"{type(since).__name__} is not an event of this device"
            raise TypeError(message)
        if not (self._is_done and since._is_done):
            message = "elapsed_s: both events must be done; synchronize first"
            raise ValueError(message)
        return self._time_s - since._time_s


class WorkerStream(Stream):
    """A queue and the thread that empties it.

    Args:
        device: the name of the device that it belongs to.
        priority: kept; every stream has a thread of its own, so none waits for another.
        on_error: called in the stream's thread with the work's name and its exception.
        raise_errors: called after each synchronize, to raise what was reported so.
    """

    def __init__(
        self,
        device: str,
        priority: int,
        on_error: Callable[[str, Exception], None],
        raise_errors: Callable[[], None],
    ) -> None:
        self.device = device
        self.priority = priority
        self._on_error = on_error
        self._raise_errors = raise_errors
        self._queue: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name=f"{device}-stream", daemon=True)
        self._thread.start()

    @property
    def is_closed(self) -> bool:
        return not self._thread.is_alive()

    def submit(self, name: str, run: Callable[[], None], finished: Callable[[], None] = lambda: None) -> None:
        """Queue work behind everything queued before."""
        self._queue.put(Work(name, run, finished))

    def record(self) -> Event:
        event = self.new_event()
        self.submit("record", event.reach)
        return event

    def new_event(self) -> WorkerEvent:
        return WorkerEvent()

    def wait(self, event: Event) -> None:
        self.submit("wait", event.synchronize)

    def synchronize(self) -> None:
        self.drain()
        self._raise_errors()

    def drain(self) -> None:
        """Block until everything queued so far has run."""
        if self.is_closed:
            return
        last = WorkerEvent()
        self.submit("drain", last.reach)
        last.synchronize()

    def stop(self) -> None:
        """Run what is queued, then end the thread."""
        self._queue.put(None)
        self._thread.join()

    def _serve(self) -> None:
        while (work := self._queue.get()) is not None:
            try:
                work.run()
            except Exception as error:  # any failure of device work is kept for the next synchronize
                self._on_error(work.name, error)
            finally:
                work.finished()
            del work  # the queue's thread must not keep the last work's tensors alive while it waits


__all__ = ["Work", "WorkerEvent", "WorkerStream"]
