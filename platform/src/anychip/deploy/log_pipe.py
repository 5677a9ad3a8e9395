"""The pipe between a service and its log's process: made, watched, waited for. Knows processes; knows no lines."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import NamedTuple

from anychip.deploy import log_pump

#: Tells the service's process which descriptor its log's pipe ends at, and the log's path: `3:/path`.
VARIABLE = "ANYCHIP_LOG_PIPE"

COMPLETE_S = 1.0
RETRY_S = 1.0
POLL_S = 0.005


class LogPipe(NamedTuple):
    """Descriptors for a process to be started.

    Attributes:
        writer: its standard output and standard error.
        reader: to be handed to it as well: it reads nothing there, but with it the pipe outlives the log's process,
            and `keep` can start that one anew.
        environ: variables for `keep`.
    """

    writer: int
    reader: int
    environ: Mapping[str, str]


@contextlib.contextmanager
def opened(log_path: Path) -> Iterator[LogPipe]:
    """A pipe into a log, whose process runs until all that print there have ended.

    Raises:
        OSError: the log can't be opened.
    """
    reader, writer = os.pipe()
    try:
        start_pump(log_path, reader)
        yield LogPipe(writer, reader, {VARIABLE: f"{reader}:{log_path.absolute()}"})
    finally:
        os.close(reader)
        os.close(writer)


def start_pump(log_path: Path, reader: int) -> None:
    """Start the log's process, which is nobody's child."""
    log = log_pump.open_log(str(log_path.absolute()))
    # Blocked signals stay blocked in the child: the last words of a service that is told to end belong in its log.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    try:
        subprocess.run(
            [sys.executable, "-I", "-S", log_pump.__file__, str(log_path.absolute())],
            stdin=reader,
            stdout=log,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            check=False,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(log)


def keep(environ: MutableMapping[str, str]) -> None:
    """In the service: have a new process for the log started whenever the present one is killed."""
    reader, _, path = environ.pop(VARIABLE, "").partition(":")
    if reader:
        os.set_inheritable(int(reader), False)
        threading.Thread(target=_keep, args=(int(reader), Path(path)), name="log", daemon=True).start()


def wait_until_complete(log_path: Path, timeout_s: float = COMPLETE_S) -> bool:
    """Wait until nobody writes the log any more; False where somebody still does."""
    deadline_s = time.monotonic() + timeout_s
    while not _is_complete(log_path):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(POLL_S)
    return True


def _is_complete(log_path: Path) -> bool:
    try:
        with log_path.open("rb") as log:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # there is no log
        return True
    return True


def _keep(reader: int, log_path: Path) -> None:
    while True:
        with contextlib.suppress(OSError):  # a full disk, say: what is printed meanwhile waits in the pipe
            _wait_for_end(log_path)
            start_pump(log_path, reader)
        time.sleep(RETRY_S)


def _wait_for_end(log_path: Path) -> None:
    """Return when no process holds the log's lock, also where the log was moved or removed meanwhile."""
    while True:
        with log_path.open("rb") as log:
            fcntl.flock(log, fcntl.LOCK_EX)
            try:
                if os.path.samestat(log_path.stat(), os.fstat(log.fileno())):
                    return
            except FileNotFoundError:
                return


__all__ = ["VARIABLE", "LogPipe", "keep", "opened", "start_pump", "wait_until_complete"]
