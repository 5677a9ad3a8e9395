"""Run a plugin's code so that whatever it raises is the plugin's own fault. Knows signals; knows no hook and no plugin.

A plugin may raise anything, also what ends a program: SystemExit, KeyboardInterrupt, a BaseException of a library in
another language. All of it becomes one error, except what the contract lets hooks raise and what a signal's handler
raised meanwhile: that is the user, who wants the program to end.
"""

from __future__ import annotations

import inspect
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

from anychip_sdk.errors import DeviceLost, KVPoolExhausted, PreconditionFailed

T = TypeVar("T")

#: What hooks may raise: the reader is told it as it is.
CONTRACT = (PreconditionFailed, DeviceLost, KVPoolExhausted)
MOST_CHARS = 2000  #: of what an error or a value says of itself

_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGALRM")


@contextmanager
def blaming(fault: Callable[[str], Exception], passes: tuple[type[BaseException], ...] = CONTRACT) -> Iterator[None]:
    """Raise `fault(what happened)` for whatever the body raises, but for what `passes`.

    Raises:
        BaseException: what the handler of a signal raised while the body ran, even if the body swallowed it.
    """
    raised: list[BaseException] = []
    with _noted_signals(raised):
        try:
            yield
        except passes:
            raise
        except BaseException as error:
            if not raised:
                raise fault(described(error)) from error
        finally:
            if raised:
                raise raised[0]


def within(seconds: float, ask: Callable[[], T]) -> T:
    """What `ask` returns or raises, from a thread of its own.

    Raises:
        TimeoutError: it takes longer; the thread is left behind, since nothing can end it.
    """
    answers: list[T] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(ask())
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, name="plugin", daemon=True)
    thread.start()
    thread.join(seconds)
    if raised:
        raise raised[0]
    if not answers:
        message = f"no answer within {seconds:g} s"
        raise TimeoutError(message)
    return answers[0]


def described(error: BaseException) -> str:
    """The kind of an error and its text, whatever its `__str__` does."""
    try:
        text = str(error)
    except BaseException:
        text = "(its text can't be read)"
    return f"{type(error).__name__}: {text}"[:MOST_CHARS]


def shown(value: object) -> str:
    """A value for an error message, whatever its `__repr__` does."""
    if inspect.iscoroutine(value):
        value.close()  # otherwise Python warns that nobody awaited it
    try:
        text = repr(value)
    except BaseException:
        return f"a {type(value).__name__} that can't be shown"
    return text if len(text) <= MOST_CHARS else f"{text[:MOST_CHARS]}..."


@contextmanager
def _noted_signals(raised: list[BaseException]) -> Iterator[None]:
    """Keep what handlers of signals raise; only the main thread runs any."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [getattr(signal, name) for name in _SIGNALS if hasattr(signal, name)]
    handlers = {number: handler for number in numbers if callable(handler := signal.getsignal(number))}
    for number, handler in handlers.items():
        signal.signal(number, _noting(handler, raised))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _noting(handler: Callable[..., Any], raised: list[BaseException]) -> Callable[[int, FrameType | None], None]:
    def note(number: int, frame: FrameType | None) -> None:
        try:
            handler(number, frame)
        except BaseException as error:
            raised.append(error)
            raise

    return note


__all__ = ["CONTRACT", "MOST_CHARS", "blaming", "described", "shown", "within"]
