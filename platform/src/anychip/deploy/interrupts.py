"""Turn signals that end a command into an exception, so that what it began is undone. Knows no command."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

from anychip.deploy.lock import CANCEL

#: Ctrl-C, a polite end, a closed terminal, and `platform down` of what is being applied.
NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, CANCEL)


class Interrupted(KeyboardInterrupt):
    """A signal arrived."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = signal.Signals(number)

    def __str__(self) -> str:
        return "cancelled by platform down" if self.number == CANCEL else f"interrupted by {self.number.name}"


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Signals raise Interrupted as long as the context lasts; those that this process was told to ignore don't."""

    def raise_it(number: int, frame: FrameType | None) -> None:
        raise Interrupted(number)

    with _handled(raise_it, NUMBERS):
        yield


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Signals that would raise something in this process do nothing as long as the context lasts."""

    def pass_over(number: int, frame: FrameType | None) -> None:
        return

    with _handled(pass_over, [number for number in NUMBERS if callable(signal.getsignal(number))]):
        yield


@contextlib.contextmanager
def _handled(handler: Callable[[int, FrameType | None], None], numbers: Sequence[signal.Signals]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # only there signals have handlers
        yield
        return
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        for number, former in before.items():
            if former is not signal.SIG_IGN:
                signal.signal(number, handler)
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


__all__ = ["NUMBERS", "Interrupted", "interruptible", "undisturbed"]
