"""One worker process and the socket to it.

Knows how to start, reach, look at and end it; knows nothing of requests or of restarting.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil
import zmq

from anychip.engine import messages
from anychip.engine.pulse import NUMBERS, Reading, read_pulse, shared_memory
from anychip.engine.stacks import DUMP_SIGNAL, read_stacks

#: Socket paths have at most 103 bytes on macOS, 107 on Linux.
MAX_PARENT_CHARS = 75
DUMP_TICK_S = 0.05


class WorkerLink:
    """Made by `launch`. `on_message` is called in the event loop for each message of the worker."""

    def __init__(
        self, socket: zmq.Socket[bytes], on_message: Callable[[messages.FromWorker], None], directory: Path
    ) -> None:
        self._socket = socket
        self._on_message = on_message
        self._directory: Path | None = directory
        self._loop = asyncio.get_running_loop()
        self._fd = int(socket.getsockopt(zmq.FD))
        self._loop.add_reader(self._fd, self.drain)
        self._pulse, self._stacks = shared_memory("anychip-pulse", NUMBERS.size), shared_memory("anychip-stacks")
        self.process: asyncio.subprocess.Process | None = None

    @classmethod
    async def launch(
        cls,
        factory: tuple[str, object],
        on_message: Callable[[messages.FromWorker], None],
        env: Mapping[str, str] | None = None,
        beat_s: float = 1.0,
    ) -> WorkerLink:
        """Start a worker that builds its core with `factory` (import path and JSON argument) and beats so often."""
        directory = _private_directory()
        endpoint = f"ipc://{directory / 'worker'}"
        # a context of its own: its threads and files end with this link
        socket = zmq.Context().socket(zmq.PAIR)
        socket.set_hwm(0)
        socket.linger = 0
        link = cls(socket, on_message, directory)
        spec, argument = factory
        try:
            socket.bind(endpoint)
            link.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "anychip.engine.worker", "--factory", spec, "--argument", json.dumps(argument)),
                *("--endpoint", endpoint, "--parent-pid", str(os.getpid())),
                *("--pulse", str(link._pulse), "--stacks", str(link._stacks), "--beat-s", str(beat_s)),
                stdin=asyncio.subprocess.PIPE,  # held open: its end tells the worker of ours
                env=None if env is None else dict(env),
                pass_fds=(link._pulse, link._stacks),
                start_new_session=True,  # its children are in its group, by which they are found when it has ended
            )
        except BaseException:
            link.close()
            raise
        return link

    @property
    def pid(self) -> int | None:
        return None if self.process is None else self.process.pid

    def send(self, message: messages.ToWorker) -> None:
        """Queue a message; it is lost if the worker is gone, which its end tells."""
        if self._socket.closed:
            return
        try:
            self._socket.send(messages.encode(message), zmq.NOBLOCK)
        except zmq.Again:
            return
        # The socket's descriptor signals changes only: a message that arrived while sending would go unnoticed.
        if self._has_message():
            self._loop.call_soon(self.drain)

    def drain(self) -> None:
        """Hand on every message that has arrived."""
        while not self._socket.closed and self._has_message():
            self._remove_directory()
            self._on_message(messages.decode_from_worker(self._socket.recv(zmq.NOBLOCK)))

    def _remove_directory(self) -> None:
        """A connected socket needs its file no longer, and so a kill leaves none behind."""
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def _has_message(self) -> bool:
        return bool(int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)

    def pulse(self) -> Reading:
        """What the worker shows of itself without being asked."""
        return read_pulse(self._pulse)

    @property
    def is_stopped(self) -> bool:
        """Whether its process is stopped, by a signal or a debugger."""
        try:
            return psutil.Process(self.pid).status() in {psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP}
        except psutil.NoSuchProcess:
            return False

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if the worker lives."""
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(number)

    async def dump_stacks(self, *, resume: bool, patience_s: float = 2.0) -> str:
        """Where each of its threads is; empty where it doesn't say so in time.

        Args:
            resume: let it go on where it is stopped; otherwise a stopped worker says it when somebody does.
            patience_s: how long to wait.
        """
        before = os.fstat(self._stacks).st_size
        self.signal(DUMP_SIGNAL)
        if resume:
            self.signal(signal.SIGCONT)
        text = ""
        for _ in range(round(patience_s / DUMP_TICK_S)):
            await asyncio.sleep(DUMP_TICK_S)
            found = read_stacks(self._stacks, before)
            if found and found == text:
                break
            text = found
        return text

    def stacks(self) -> str:
        """All the stacks that it has written, by a fatal error too."""
        return read_stacks(self._stacks)

    async def wait(self) -> int:
        """Wait for the worker's end, hand on what it said last, end its children, return its exit code."""
        assert self.process is not None
        code = await self.process.wait()
        self._end_children()
        self.drain()
        return code

    async def stop(self, grace_s: float) -> None:
        """End the worker: ask, then terminate, then kill; each is given `grace_s`."""
        if self.process is None:
            return
        for ask in (
            lambda: self.send(messages.Shutdown()),
            lambda: self.signal(signal.SIGTERM),
            lambda: self.signal(signal.SIGKILL),
        ):
            if self.process.returncode is not None:
                break
            ask()
            try:
                await asyncio.wait_for(asyncio.shield(self.process.wait()), grace_s)
            except asyncio.TimeoutError:
                continue
            break
        if self.process.returncode is not None:
            self._end_children()

    def _end_children(self) -> None:
        """What the worker has started and left behind: they are what its process group still has."""
        assert self.pid is not None
        with contextlib.suppress(ProcessLookupError, PermissionError):  # none; a zombie's group on some systems
            os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Close the socket; the process must have ended, or ends by the closing of its standard input."""
        if self._socket.closed:
            return
        self._loop.remove_reader(self._fd)
        context = self._socket.context
        self._socket.close()
        context.term()
        os.close(self._pulse)
        os.close(self._stacks)
        self._remove_directory()
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()


def _private_directory() -> Path:
    """A new directory that only this user may enter, with a path short enough for a socket's name."""
    parent = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix="anychip-", dir=parent if len(parent) <= MAX_PARENT_CHARS else "/tmp"))


__all__ = ["WorkerLink"]
