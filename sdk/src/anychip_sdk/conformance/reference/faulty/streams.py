"""Faults of streams and events: too early, too late, out of order, silent. Knows no check."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable

import torch

from anychip_sdk.conformance.reference.device import AsyncReferenceDevice
from anychip_sdk.conformance.reference.faulty.base import device_fault
from anychip_sdk.conformance.reference.streams import WorkerEvent, WorkerStream
from anychip_sdk.device import DeviceConfig, Event, Stream


@device_fault("AC-STREAM-001")
class LaunchesBlock(AsyncReferenceDevice):
    """Every call waits until its work is done."""

    def delay(self, stream: Stream, seconds: float) -> None:
        super().delay(stream, seconds)
        self._own(stream).drain()


class _AlwaysDone(WorkerEvent):
    def query(self) -> bool:
        return True


class _AlwaysDoneStream(WorkerStream):
    def new_event(self) -> WorkerEvent:
        return _AlwaysDone()


@device_fault("AC-STREAM-001", "AC-STREAM-003")
class EventsAreAlwaysDone(AsyncReferenceDevice):
    """An event's query says yes from the start."""

    stream_class = _AlwaysDoneStream


class _NeverDone(WorkerEvent):
    def query(self) -> bool:
        return False


class _NeverDoneStream(WorkerStream):
    def new_event(self) -> WorkerEvent:
        return _NeverDone()


@device_fault("AC-STREAM-002")
class EventsAreNeverDone(AsyncReferenceDevice):
    """An event's query says no for ever."""

    stream_class = _NeverDoneStream


class _EarlyStream(WorkerStream):
    def record(self) -> Event:
        event = self.new_event()
        threading.Timer(0.002, event.reach).start()
        return event


@device_fault("AC-STREAM-003")
class EventsAreEarly(AsyncReferenceDevice):
    """An event is done a little later, whatever the stream does."""

    stream_class = _EarlyStream


class _NoWaitStream(WorkerStream):
    def wait(self, event: Event) -> None:
        return


@device_fault("AC-STREAM-005")
class WaitDoesNothing(AsyncReferenceDevice):
    """A stream does not wait for another's event."""

    stream_class = _NoWaitStream


class _HostWaitStream(WorkerStream):
    def wait(self, event: Event) -> None:
        event.synchronize()


@device_fault("AC-STREAM-006")
class WaitBlocksTheHost(AsyncReferenceDevice):
    """The host waits in the stream's stead."""

    stream_class = _HostWaitStream


@device_fault("AC-STREAM-007")
class StreamsAreSerialised(AsyncReferenceDevice):
    """Delays of all streams run one after the other."""

    def init(self, config: DeviceConfig) -> None:
        super().init(config)
        self._last = threading.Event()
        self._last.set()

    def delay(self, stream: Stream, seconds: float) -> None:
        before, done = self._last, threading.Event()
        self._last = done

        def run() -> None:
            before.wait()
            time.sleep(seconds)
            done.set()

        self._own(stream).submit("delay", run)


@device_fault("AC-STREAM-007")
class CopiesWaitForAllStreams(AsyncReferenceDevice):
    """A copy on one stream waits for what was queued on every other before it."""

    def _submit_copy(self, stream: WorkerStream, run: Callable[[], None], finished: Callable[[], None]) -> None:
        before = [other.record() for other in self._streams if other is not stream]

        def run_last() -> None:
            for event in before:
                event.synchronize()
            run()

        super()._submit_copy(stream, run_last, finished)


@device_fault("AC-STREAM-007")
class StreamsTakeTurns(AsyncReferenceDevice):
    """One stream works at a time; they take turns, so that short work does pass long work."""

    def init(self, config: DeviceConfig) -> None:
        super().init(config)
        self._engine = threading.Lock()

    def delay(self, stream: Stream, seconds: float) -> None:
        def run() -> None:
            left_s = seconds
            while left_s > 0:
                with self._engine:
                    time.sleep(min(left_s, 0.005))
                left_s -= 0.005
                time.sleep(0.0005)  # another stream's turn

        self._own(stream).submit("delay", run)


class _UnclockedEvent(WorkerEvent):
    def elapsed_s(self, since: Event) -> float:
        return super().elapsed_s(since) / 1000


class _UnclockedStream(WorkerStream):
    def new_event(self) -> WorkerEvent:
        return _UnclockedEvent()


@device_fault("AC-STREAM-008")
class ElapsedIsInMilliseconds(AsyncReferenceDevice):
    """The time between events is off by a factor of 1000."""

    stream_class = _UnclockedStream


@device_fault("AC-STREAM-009")
class SynchronizeForgetsStreams(AsyncReferenceDevice):
    """Device.synchronize waits for the first stream only."""

    def _drain_streams(self) -> None:
        for stream in self._streams[:1]:
            stream.drain()


class _DroppingStream(WorkerStream):
    def stop(self) -> None:
        while not self._queue.empty():
            self._queue.get()
        super().stop()


@device_fault("AC-STREAM-010")
class DestroyingDropsWork(AsyncReferenceDevice):
    """A destroyed stream's queue is thrown away."""

    stream_class = _DroppingStream


@device_fault("AC-STREAM-011")
class ScratchIsShared(AsyncReferenceDevice):
    """All streams copy through one scratch buffer, without a lock."""

    def init(self, config: DeviceConfig) -> None:
        super().init(config)
        self._scratch = torch.empty(512, dtype=torch.uint8)

    def _copy_now(self, dst: torch.Tensor, src: torch.Tensor) -> None:
        if dst.dtype != torch.uint8 or dst.numel() > 512 or dst.shape != src.shape or dst.dim() != 1:
            super()._copy_now(dst, src)
            return
        scratch = self._scratch[: src.numel()]
        scratch.copy_(src)
        time.sleep(0)  # another thread's turn
        dst.copy_(scratch)


@device_fault("AC-STREAM-012")
class SynchronizeHoldsTheInterpreter(AsyncReferenceDevice):
    """Waiting keeps every other Python thread from running."""

    _until_s = 0.0

    def delay(self, stream: Stream, seconds: float) -> None:
        super().delay(stream, seconds)
        self._until_s = max(self._until_s, time.perf_counter()) + seconds

    def _drain_streams(self) -> None:
        left_s = self._until_s - time.perf_counter()
        if left_s > 0:
            ctypes.PyDLL(None).usleep(int(left_s * 1e6))  # PyDLL does not release the interpreter's lock
        super()._drain_streams()


@device_fault("AC-STREAM-013")
class ErrorsAreSwallowed(AsyncReferenceDevice):
    """An error of queued work is never raised."""

    def _defer(self, name: str, error: Exception) -> None:
        return


@device_fault("AC-STREAM-013")
class ErrorsAreNameless(AsyncReferenceDevice):
    """A late error does not say what failed."""

    def _raise_errors(self) -> None:
        with self._lock:
            failed, self._errors = bool(self._errors), []
        if failed:
            message = f"device {self.device_name}: error 719"
            raise RuntimeError(message)


class _BrokenForGoodStream(WorkerStream):
    has_failed = False

    def submit(self, name: str, run: Callable[[], None], finished: Callable[[], None] = lambda: None) -> None:
        def guarded() -> None:
            if self.has_failed and name == "copy":
                return
            try:
                run()
            except Exception:
                self.has_failed = True
                raise

        super().submit(name, guarded, finished)


@device_fault("AC-STREAM-014")
class ErrorsStopTheStreamSilently(AsyncReferenceDevice):
    """After an error a stream drops its copies without a word."""

    stream_class = _BrokenForGoodStream


class _UnwaitedStream(WorkerStream):
    def synchronize(self) -> None:
        self._raise_errors()


@device_fault("AC-STREAM-015")
class StreamSynchronizeDoesNothing(AsyncReferenceDevice):
    """Stream.synchronize returns at once."""

    stream_class = _UnwaitedStream


@device_fault("AC-STREAM-016")
class StreamsRunOut(AsyncReferenceDevice):
    """From the 17th stream on work is lost."""

    def _new_stream(self, priority: int) -> WorkerStream:
        kind = WorkerStream if len(self._streams) < 16 else _LosingStream
        return kind(self.device_name, priority, self._defer, self._raise_errors)


class _LosingStream(WorkerStream):
    def submit(self, name: str, run: Callable[[], None], finished: Callable[[], None] = lambda: None) -> None:
        super().submit(name, run if name != "copy" else lambda: None, finished)


@device_fault("AC-STREAM-017")
class RecordIsEarly(AsyncReferenceDevice):
    """Copies within the device that name no stream run late, and an event behind them is done at once."""

    _late: Stream | None = None

    def copy(self, dst: torch.Tensor, src: torch.Tensor, stream: Stream | None = None) -> None:
        if stream is None and not self._is_on_host(dst) and not self._is_on_host(src):
            stream = self._late = self._late or self.create_stream()
            self.delay(stream, 0.02)
        super().copy(dst, src, stream)


@device_fault("AC-STREAM-018")
class RecordWaitsForStreams(AsyncReferenceDevice):
    """Device.record waits until the device is idle."""

    def record(self) -> Event:
        self.synchronize()
        return super().record()


__all__ = [
    "CopiesWaitForAllStreams",
    "DestroyingDropsWork",
    "ElapsedIsInMilliseconds",
    "ErrorsAreNameless",
    "ErrorsAreSwallowed",
    "ErrorsStopTheStreamSilently",
    "EventsAreAlwaysDone",
    "EventsAreEarly",
    "EventsAreNeverDone",
    "LaunchesBlock",
    "RecordIsEarly",
    "RecordWaitsForStreams",
    "ScratchIsShared",
    "StreamSynchronizeDoesNothing",
    "StreamsAreSerialised",
    "StreamsRunOut",
    "StreamsTakeTurns",
    "SynchronizeForgetsStreams",
    "SynchronizeHoldsTheInterpreter",
    "WaitBlocksTheHost",
    "WaitDoesNothing",
]
