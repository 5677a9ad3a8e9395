"""Run a backend in a process of its own: loading seen from outside, fork, death. Knows tasks; knows no requirement."""

from __future__ import annotations

import json
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any

from anychip_sdk.backend import Backend
from anychip_sdk.conformance.context import Context
from anychip_sdk.conformance.requirements import Violation

START_S = 120.0  #: for importing torch on a busy machine
_MARK = "anychip-child "
_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from anychip_sdk.conformance.checks import _child; _child.main()"
)
_KEPT = ("HOME", "LANG", "LD_LIBRARY_PATH", "SYSTEMROOT", "TMPDIR")


class Child:
    """A process that runs one task; killed at the end of the block.

    Args:
        context: whose `load`, which must be picklable, loads the backend there.
        task: a name of `tasks()`.
        bare: without any variable of the environment that isn't the system's own.
        arguments: plain values for the task.
    """

    def __init__(self, context: Context, task: str, *, bare: bool = False, **arguments: Any) -> None:
        self._task = task
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        if bare:
            environment = {key: value for key, value in environment.items() if key in _KEPT}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BOOT, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._errors: list[str] = []
        self._readers = [
            threading.Thread(target=self._read_answers, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()
        where = (context.info.name, context.config)
        self._send(pickle.dumps((task, _packed_load(context), pickle.dumps(where), arguments)))

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        return self._process.pid

    def answer(self, seconds: float = START_S) -> dict[str, Any]:
        """The task's next answer.

        Raises:
            Violation: the process ended or said nothing in time.
        """
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            message = f"a process of its own ({self._task}) said nothing within {seconds:g} s"
            raise Violation(message) from None
        if line is None:
            code = self._process.wait()
            self._readers[1].join(5)
            message = f"a process of its own ({self._task}) {_ending(code)}: {''.join(self._errors)[-2000:].strip()}"
            raise Violation(message)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def kill(self) -> None:
        """End it and all its children with SIGKILL, and wait."""
        with suppress(ProcessLookupError):  # all of them have ended
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for reader in self._readers:
            reader.join(5)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None and not pipe.closed:
                _close(pipe)

    def _send(self, job: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(len(job).to_bytes(8, "little") + job)
        self._process.stdin.flush()

    def _read_answers(self) -> None:
        assert self._process.stdout is not None
        for raw in self._process.stdout:
            line = raw.decode(errors="replace")
            if line.startswith(_MARK):
                self._lines.put(line[len(_MARK) :])
        self._lines.put(None)

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        for raw in self._process.stderr:
            self._errors.append(raw.decode(errors="replace"))


def ask(
    context: Context, task: str, *, bare: bool = False, seconds: float = START_S, **arguments: Any
) -> dict[str, Any]:
    """The first answer of a task in a process of its own."""
    with Child(context, task, bare=bare, **arguments) as child:
        return child.answer(seconds)


def _packed_load(context: Context) -> bytes:
    try:
        return pickle.dumps(context.load)
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        message = "Context.load must be picklable, e.g. functools.partial of a module's function"
        raise TypeError(message) from error


def _load(packed: bytes) -> Backend:
    """Import what the backend lies in and load it: only when the task asks for it."""
    backend: Backend = pickle.loads(packed)()
    return backend


def main() -> None:
    """What the child process runs: read the job, do it, answer."""
    size = int.from_bytes(sys.stdin.buffer.read(8), "little")
    task, load, where, arguments = pickle.loads(sys.stdin.buffer.read(size))
    from anychip_sdk.conformance.checks._tasks import TASKS

    TASKS[task](partial(_load, load), partial(pickle.loads, where), _answer, **arguments)


def _answer(answer: Mapping[str, Any]) -> None:
    sys.stdout.write("\n" + _MARK + json.dumps(answer) + "\n")
    sys.stdout.flush()


def _ending(code: int) -> str:
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code} before it answered"


def _close(pipe: Any) -> None:
    with suppress(BrokenPipeError):  # what was buffered for a dead process is lost, as it should be
        pipe.close()


Answer = Callable[[Mapping[str, Any]], None]

__all__ = ["START_S", "Answer", "Child", "ask", "main"]
