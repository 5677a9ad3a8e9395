"""Processes that do for this one what must be ended, or kept from its interpreter. Knows processes and frames only.

Each is kept for the next request and replaced after it has ended, by its own limits or otherwise.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator

from anychip.text.frames import receive, send

GRACE_S = 5.0  #: beyond its own limit, until a process counts as stuck


class HelperEnded(Exception):
    """A helper was ended, by its limits say, or doesn't answer; says by which."""


class Helper:
    """One process of a module whose standard input is a socket with frames; it ends when that closes.

    Args:
        module: what `python -m` runs.
        limit_s: after which it ends itself by SIGALRM.
    """

    def __init__(self, module: str, limit_s: float) -> None:
        self._limit_s = limit_s
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(limit_s + GRACE_S)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C in a terminal is for the server, which may still need it
            )

    def ask(self, request: bytes) -> bytes:
        """What answers a request.

        Raises:
            HelperEnded: the process is gone, or doesn't answer.
        """
        try:
            send(self._socket, request)
            answer = receive(self._socket)
        except (OSError, ValueError) as error:
            raise HelperEnded(f"its process doesn't answer ({error or type(error).__name__})") from error
        if not answer:
            raise HelperEnded(self._why())
        return answer

    def end(self) -> None:
        self._socket.close()
        self._process.kill()
        self._process.wait()

    def _why(self) -> str:
        try:
            code = self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            return "its process doesn't answer"
        if code == -signal.SIGALRM:
            return f"it takes more than {self._limit_s:g} seconds"
        return f"its process ended with code {code}, most likely for want of memory"


class Helpers:
    """Helpers of one kind, as many as are asked at once. For several threads; they end with the last reference.

    Args:
        start: makes one, ready for requests.
    """

    def __init__(self, start: Callable[[], Helper]) -> None:
        self._start = start
        self._idle: list[Helper] = []
        self._finalizer = weakref.finalize(self, _end_all, self._idle)

    def warm(self) -> None:
        """Have one ready; raises what starting one raises."""
        self._idle.append(self._start())

    @contextlib.contextmanager
    def one(self) -> Iterator[Helper]:
        """A helper for one request; whatever the block raises ends it."""
        try:
            helper = self._idle.pop()
        except IndexError:
            helper = self._start()
        try:
            yield helper
        except BaseException:
            helper.end()
            raise
        if self._finalizer.alive:
            self._idle.append(helper)
        else:
            helper.end()

    def close(self) -> None:
        """End those that are idle; the others end with their requests."""
        self._finalizer()


def _end_all(helpers: list[Helper]) -> None:
    while helpers:
        helpers.pop().end()


__all__ = ["Helper", "HelperEnded", "Helpers"]
