"""Start a service's process, tell whether it lives, and end it with all its children. Knows no recipe and no HTTP.

A started process hangs on a leash, its standard input, which `anychip.deploy.leash` follows on the other side.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from anychip.deploy import log_pipe
from anychip.deploy.process_id import ProcessId

GRACE_S = 15.0  #: more than the server's own limit for draining
POLL_S = 0.02
CLOCK_ERROR_S = 1.0  #: start times are computed from the boot time, which moves a little when the clock is set


@dataclass(frozen=True)
class Started:
    """A process that this command started, and its leash."""

    process: subprocess.Popen[bytes]
    id: ProcessId
    leash: socket.socket
    log_path: Path

    def exit_code(self) -> int | None:
        """None while it runs; once it doesn't, its log is complete."""
        code = self.process.poll()
        if code is not None:
            log_pipe.wait_until_complete(self.log_path)
        return code

    def say(self, order: bytes) -> None:
        """Tell the process something; one that has ended doesn't hear it."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.leash.sendall(order)

    def has_answered(self, wait_s: float) -> bool:
        """Whether the process said something, waiting for it at most so long."""
        return bool(select.select([self.leash], [], [], wait_s)[0]) and bool(self._heard())

    def let_go(self) -> None:
        """Forget the process, which lives on its own by now, and never wait for it again."""
        self.leash.close()
        if self.process.poll() is None:
            self.process.returncode = 0  # or Popen warns of a running process when it is collected

    def end(self, grace_s: float = GRACE_S) -> int:
        """End the process and its children; returns its exit code."""
        try:
            stop(self.id, grace_s)
            code = self.process.wait()
            log_pipe.wait_until_complete(self.log_path)
            return code
        finally:
            self.leash.close()

    def _heard(self) -> bytes:
        try:
            return self.leash.recv(1024)
        except ConnectionResetError:
            return b""


def start(
    command: Sequence[str],
    log_path: Path,
    *,
    folder: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> Started:
    """Run a command in a session of its own; what it prints becomes entries of the log."""
    ours, theirs = socket.socketpair()
    try:
        with log_pipe.opened(log_path) as log:
            process = subprocess.Popen(
                command,
                stdin=theirs.fileno(),
                stdout=log.writer,
                stderr=log.writer,
                pass_fds=(log.reader,),
                cwd=folder,
                env={**(os.environ if environ is None else environ), **log.environ},
                start_new_session=True,
            )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return Started(process, identify(process.pid), ours, log_path)


def identify(pid: int) -> ProcessId:
    """The process behind a pid, which must exist (a dead child counts until it is waited for)."""
    return ProcessId(pid, psutil.Process(pid).create_time())


def is_alive(process_id: ProcessId | None) -> bool:
    return find(process_id) is not None


def find(process_id: ProcessId | None) -> psutil.Process | None:
    """The living process; None where it ended, even if its pid is in use again."""
    if process_id is None:
        return None
    try:
        process = psutil.Process(process_id.pid)
        is_same = abs(process.create_time() - process_id.started_at) <= CLOCK_ERROR_S
        return process if is_same and process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.NoSuchProcess:
        return None


def stop(process_id: ProcessId | None, grace_s: float = GRACE_S) -> bool:
    """End a process and its children: SIGTERM, and SIGKILL after the grace; False where it was gone already.

    Interrupted by Ctrl-C it kills at once.
    """
    process = find(process_id)
    if process is None:
        return False
    family = [process, *_children(process)]
    try:
        _signal(process, signal.SIGTERM)
        wait_gone([process], grace_s)
    finally:
        for member in {*family, *_children(process)}:
            _signal(member, signal.SIGKILL)
        wait_gone(family, 5)
    return True


def wait_gone(processes: Sequence[psutil.Process], limit_s: float) -> bool:
    """Wait until none of them lives, at most so long; a dead child that nobody waits for is as good as gone."""
    deadline_s = time.monotonic() + limit_s
    while any(_lives(one) for one in processes):
        if time.monotonic() >= deadline_s:
            return False
        time.sleep(POLL_S)
    return True


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def environment_of(process_id: ProcessId) -> dict[str, str] | None:
    """The variables that a living process was started with; None where the system doesn't tell."""
    process = find(process_id)
    try:
        return None if process is None else dict(process.environ())
    except psutil.Error:
        return None


def _children(process: psutil.Process) -> list[psutil.Process]:
    """All that a process has started, but for the one that asks: it may be started to end its parent."""
    try:
        return [one for one in process.children(recursive=True) if one.pid != os.getpid()]
    except psutil.NoSuchProcess:
        return []


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)  # psutil refuses where the pid was reused
    except psutil.NoSuchProcess:
        return


__all__ = [
    "GRACE_S",
    "Started",
    "environment_of",
    "find",
    "identify",
    "is_alive",
    "start",
    "stop",
    "wait_gone",
]
