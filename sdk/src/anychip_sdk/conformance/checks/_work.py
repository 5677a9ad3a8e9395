"""How checks move data, wait with a limit and see that work is still under way. Knows devices; knows no requirement."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TypeVar

import torch

from anychip_sdk.conformance.context import Context
from anychip_sdk.conformance.requirements import Violation
from anychip_sdk.device import Device, Event, Stream

T = TypeVar("T")

WAIT_S = 60.0  #: no single call of a check takes longer
DELAY_S = 0.05  #: how long streams are kept busy at first
ATTEMPTS = 5


def finishes(what: str, call: Callable[[], T], seconds: float = WAIT_S) -> T:
    """The call's answer; a Violation where it takes longer than `seconds`."""
    answers: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(call())
        except BaseException as error:  # raised again in the caller's thread
            errors.append(error)

    thread = threading.Thread(target=run, name="conformance-wait", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        message = f"{what} did not return within {seconds:g} s"
        raise Violation(message)
    if errors:
        raise errors[0]
    return answers[0]


def synchronize(waits: Device | Stream | Event) -> None:
    """Wait for a device, a stream or an event, with a limit."""
    finishes(f"{type(waits).__name__}.synchronize", waits.synchronize)


def error_of(call: Callable[[], object]) -> Exception | None:
    """What the call raises; None if it returns."""
    try:
        call()
    except Exception as error:
        return error
    return None


def told_by_thread(error: Exception) -> Violation:
    """What a thread ran into, for the thread that started it."""
    found = Violation(f"{type(error).__name__}: {error}")
    found.__cause__ = error
    return found


def expect_none(problems: Sequence[Violation], what: str = "") -> None:
    """Raise one Violation for what threads ran into, if they did."""
    if problems:
        raise Violation(what + "; ".join(one.message for one in problems[:3])) from problems[0]


def random_bytes(count: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randint(0, 256, (count,), dtype=torch.uint8, generator=generator)


class Buffers:
    """Device memory of one check, given back at the end of the block."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._held: list[torch.Tensor] = []

    def __enter__(self) -> Buffers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        held, self._held = self._held, []
        for buffer in held:
            failed = error_of(lambda buffer=buffer: self._device.free(buffer))  # type: ignore[misc]
            if failed is not None and error is None:  # what was found inside the block matters more
                raise failed

    def alloc(self, nbytes: int, alignment: int = 64) -> torch.Tensor:
        buffer = self._device.alloc(nbytes, alignment)
        self._held.append(buffer)
        return buffer

    def free(self, buffer: torch.Tensor) -> None:
        """Give one back early; a view of the whole will do."""
        (held,) = (held for held in self._held if held.data_ptr() == buffer.data_ptr())
        self._held = [other for other in self._held if other is not held]
        self._device.free(held)

    def put(self, host: torch.Tensor) -> torch.Tensor:
        """A buffer with the bytes of a contiguous host tensor, seen in its dtype and shape."""
        placed = self.put_now(host)
        synchronize(self._device)
        return placed

    def put_now(self, host: torch.Tensor) -> torch.Tensor:
        """The same without waiting for the device's streams."""
        placed = self.alloc(host.nbytes).view(host.dtype).view(host.shape)
        self._device.copy(placed, host)
        return placed


def download(device: Device, tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous host copy."""
    host = torch.empty(tensor.shape, dtype=tensor.dtype)
    device.copy(host, tensor)
    synchronize(device)
    return host


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equal shape, dtype and bits: NaN equals itself, 0.0 differs from -0.0."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    first, second = (value.contiguous().view(-1) for value in (one, other))
    return first.numel() == 0 or torch.equal(first.view(torch.uint8), second.view(torch.uint8))


@contextmanager
def streams(device: Device, count: int) -> Iterator[list[Stream]]:
    """Streams that are destroyed behind the block."""
    made = [device.create_stream() for _ in range(count)]
    try:
        yield made
    except BaseException:
        for stream in made:
            error_of(lambda stream=stream: destroy(device, stream))  # type: ignore[misc]
        raise
    for stream in made:
        destroy(device, stream)


def destroy(device: Device, stream: Stream) -> None:
    """Destroy a stream, with a limit."""
    finishes("Device.destroy_stream", lambda: device.destroy_stream(stream))


def delay_of(turn: int) -> float:
    """Short, but long in the first turn: a host that is busy with something else would come too late to see a fault."""
    return DELAY_S / 5 if turn else 2 * DELAY_S


def keep_busy(context: Context, stream: Stream, seconds: float) -> None:
    """Keep the stream busy, on devices that run later; others run at once and have nothing to be late with."""
    if context.claims.holds("async_streams"):
        context.device.delay(stream, seconds)


def not_under_way(device: Device, stream: Stream, act: Callable[[], Event], what: str) -> str | None:
    """Why `act`, behind a delay on `stream`, was not seen under way after it had returned; None where it was.

    Only the event of `act` decides. The host's clock serves to tell a blocked call from a host that was busy with
    something else: where the host took longer than the delay nothing is known, and it is tried again, longer.
    """
    seconds = DELAY_S
    for _ in range(ATTEMPTS):
        started_s = time.perf_counter()
        device.delay(stream, seconds)
        event = act()
        is_done = event.query()
        taken_s = time.perf_counter() - started_s
        synchronize(device)
        if taken_s < 0.9 * seconds:
            if not is_done:
                return None
            return f"{what}: its event is done {taken_s:.3f} s after a delay of {seconds:.3f} s was queued before it"
        seconds *= 2
    return f"{what}: the host was blocked until the work was done, in each of {ATTEMPTS} attempts"


def poll(holds: Callable[[], bool], seconds: float = WAIT_S) -> bool:
    """Whether it holds within that time."""
    end_s = time.perf_counter() + seconds
    pause = threading.Event()
    while not holds():
        if time.perf_counter() > end_s:
            return False
        pause.wait(0.0005)
    return True


__all__ = [
    "ATTEMPTS",
    "DELAY_S",
    "WAIT_S",
    "Buffers",
    "delay_of",
    "destroy",
    "download",
    "error_of",
    "expect_none",
    "finishes",
    "keep_busy",
    "not_under_way",
    "poll",
    "random_bytes",
    "same_bits",
    "streams",
    "synchronize",
    "told_by_thread",
]
