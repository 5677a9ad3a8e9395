"""Start a service's process, tell whether it lives, and end it with all its children. Knows no recipe and no HTTP.

A started process hangs on a leash: its standard input is a pipe from the command that started it. The command says
"detach" once the service may live on its own; if the command dies before that, however it dies, the pipe closes and the
service ends itself.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from anychip.deploy import log_pipe
from anychip.deploy.state import ProcessId

DETACH = b"detach\n"
GRACE_S = 15.0  #: more than the server's own limit for draining
CLOCK_ERROR_S = 1.0  #: start times are computed from the boot time, which moves a little when the clock is set


@dataclass(frozen=True)
class Started:
    """A process that this command started, and its leash."""

    process: subprocess.Popen[bytes]
    id: ProcessId
    log_path: Path

    def exit_code(self) -> int | None:
        """None while it runs; once it doesn't, its log is complete."""
        code = self.process.poll()
        if code is not None:
            log_pipe.wait_until_complete(self.log_path)
        return code

    def detach(self) -> None:
        """Let the process outlive this command, which never waits for it again."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it ended
            self.process.stdin.write(DETACH)
            self.process.stdin.flush()
        self._drop_leash()
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
            self._drop_leash()

    def _drop_leash(self) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()


def start(
    command: Sequence[str],
    log_path: Path,
    *,
    folder: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> Started:
    """Run a command in a session of its own; what it prints becomes entries of the log."""
    with log_pipe.opened(log_path) as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=log.writer,
            stderr=log.writer,
            pass_fds=(log.reader,),
            cwd=folder,
            env={**(os.environ if environ is None else environ), **log.environ},
            start_new_session=True,
        )
    return Started(process, identify(process.pid), log_path)


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
        psutil.wait_procs([process], timeout=grace_s)
    finally:
        for member in {*family, *_children(process)}:
            _signal(member, signal.SIGKILL)
        psutil.wait_procs(family, timeout=5)
    return True


def follow_leash(grace_s: float = GRACE_S) -> None:
    """In the service: end this process when the command that started it dies before it says "detach"."""

    def watch() -> None:
        said = os.read(0, len(DETACH))
        if said == DETACH:
            return
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(grace_s)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="leash", daemon=True).start()


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        found: list[psutil.Process] = process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return found


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)  # psutil refuses where the pid was reused
    except psutil.NoSuchProcess:
        return


__all__ = ["GRACE_S", "Started", "find", "follow_leash", "identify", "is_alive", "start", "stop"]
