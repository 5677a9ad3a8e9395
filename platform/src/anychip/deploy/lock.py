"""Let one command at a time change a service, and tell who does. Knows the lock's file; knows no service.

The operating system gives the lock back when its holder dies. Who holds it is written into the file, which keeps its
size, so that it can be written on a full disk; where it can't be, the lock holds all the same.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from anychip.deploy import supervisor
from anychip.deploy.process_id import ProcessId
from anychip.deploy.storage import make_folder, unusable
from anychip_sdk.errors import StateLocked

CANCEL = signal.SIGUSR1  #: asks a command that holds a lock, and listens for it, to undo what it does
HOLDER_BYTES = 1024


class Holder(msgspec.Struct, frozen=True):
    """Who holds a lock.

    Attributes:
        process: the command's.
        host: the machine it runs on.
        command: its command line, for messages.
        is_cancellable: whether it listens for CANCEL.
    """

    process: ProcessId
    host: str
    command: str
    is_cancellable: bool = False

    @property
    def is_here(self) -> bool:
        """Whether it is a living process of this machine."""
        return self.host == os.uname().nodename and supervisor.is_alive(self.process)

    def __str__(self) -> str:
        return f"process {self.process.pid} on {self.host} ({self.command})"


@contextlib.contextmanager
def hold(path: Path, name: str) -> Iterator[None]:
    """Hold a service's lock for as long as the context lasts.

    Raises:
        StateLocked: another command holds it, with its pid, host and command.
        PreconditionFailed: there is no place for the lock.
    """
    make_folder(path.parent)
    descriptor = _open(path)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            who = holder(path)
            message = f"service '{name}' is being changed by {'another command' if who is None else who}"
            raise StateLocked(message, hint="wait for it, or end it") from None
        _note(descriptor, msgspec.json.encode(_self()))
        try:
            yield
        finally:
            _note(descriptor, b"")
    finally:
        os.close(descriptor)


def holder(path: Path) -> Holder | None:
    """Who noted last that it holds the lock; None where nobody does, or it isn't known."""
    try:
        return msgspec.json.decode(path.read_bytes()[:HOLDER_BYTES], type=Holder)
    except (OSError, ValueError, msgspec.MsgspecError):
        return None


def _open(path: Path) -> int:
    """The lock's file; where it can't be made or written, itself as it is, or else its folder."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o600)
    except OSError as error:
        for other in (path, path.parent):
            with contextlib.suppress(OSError):
                return os.open(other, os.O_RDONLY | os.O_NONBLOCK)
        raise unusable(path, "can't be opened", error) from error


def _note(descriptor: int, text: bytes) -> None:
    with contextlib.suppress(OSError):  # a full or read-only disk; only the name is missing then
        os.pwrite(descriptor, text[:HOLDER_BYTES].ljust(HOLDER_BYTES), 0)


def _self() -> Holder:
    command = " ".join(sys.argv).encode(errors="backslashreplace").decode()
    own = supervisor.identify(os.getpid())
    return Holder(own, os.uname().nodename, command[:300], callable(signal.getsignal(CANCEL)))


__all__ = ["CANCEL", "Holder", "hold", "holder"]
