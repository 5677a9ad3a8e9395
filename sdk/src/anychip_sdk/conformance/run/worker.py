"""A process of its own for a group of cases; a crash or hang ends a case, never the run. Knows no verdict."""

from __future__ import annotations

import json
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from anychip_sdk.conformance.run.attempt import Attempt
from anychip_sdk.conformance.run.child import Job
from anychip_sdk.environment import worker_environment
from anychip_sdk.errors import BackendBroken

START_S = 300.0  #: for importing torch on a busy machine and bringing up a device
LOG_TAIL = 1500  #: characters of the process's output in a failure's message
_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from anychip_sdk.conformance.run.child import main; main(int(sys.argv[1]))"
)


class StartFailed(BackendBroken):
    """The process ended before it could run a case: the backend can't be loaded, or its device can't be opened."""


class Worker:
    """Runs cases one by one, in a process that is started when needed and started anew after a crash.

    It has the variables that the backend names for the engine's worker: the first process that lacks some of them says
    so, and is started again.

    Args:
        job: what the process works with.
        log: where its output goes.
        timeout_s: for one case.
    """

    def __init__(self, job: Job, log: Path, timeout_s: float) -> None:
        self._job = job
        self._log = log
        self._timeout_s = timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._answers: queue.Queue[str | None] = queue.Queue()
        self.ready: dict[str, Any] = {}  #: what the process said of the device

    @property
    def environment(self) -> Mapping[str, str] | None:
        """What the backend names for a worker's process; None where nothing was missing so far."""
        return self._job.environment

    def start(self) -> None:
        """Start the process and wait until it has the device.

        Raises:
            StartFailed: with the end of its output.
        """
        answer = self._launch()
        if "environment" in answer:
            self.kill()
            self._job = replace(self._job, environment=answer["environment"])
            answer = self._launch()
        self.ready = answer["ready"]

    def _launch(self) -> dict[str, Any]:
        """Start the process; the first thing that it says."""
        reading, writing = os.pipe()
        environment = {**worker_environment(self._job.environment or {}), "OMP_NUM_THREADS": "1"}
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, str(writing), json.dumps(sys.path)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=(writing,),
                env=environment,
                start_new_session=True,
            )
        os.close(writing)
        self._process = process
        self._answers = queue.Queue()
        threading.Thread(target=_pump, args=(reading, self._answers), daemon=True).start()
        pickled = pickle.dumps(self._job)
        self._send(len(pickled).to_bytes(8, "little") + pickled)
        answer = self._receive(START_S)
        if isinstance(answer, str):
            self.kill()
            tail = self._tail()
            message = (
                f"no case can be run: the process that opens the device {answer}: {tail.rpartition(chr(10))[2]}\n{tail}"
            )
            raise StartFailed(message)
        return answer

    def run(self, case: str) -> Attempt:
        """One case. Whatever happens in it, this returns.

        Raises:
            StartFailed: the process can't be started, or not again.
        """
        if self._process is None:
            self.start()
        started_s = time.perf_counter()
        self._send(case.encode() + b"\n")
        answer = self._receive(self._timeout_s)
        if isinstance(answer, str):
            self.kill()
            message = f"the process {answer} during this case\n{self._tail()}"
            return Attempt("failed", message.rstrip(), time.perf_counter() - started_s, poisoned=True)
        values = answer["attempt"]
        attempt = Attempt(**{**values, "fallbacks": tuple(values["fallbacks"])})
        if attempt.poisoned:
            self.kill()
        return attempt

    def close(self) -> str:
        """End the process in good order; what was wrong with its end, or nothing."""
        if self._process is None or self._process.stdin is None:
            return ""
        self._process.stdin.close()
        try:
            code = self._process.wait(self._timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return f"closing the device did not end within {self._timeout_s:g} s"
        self.kill()
        return f"closing the device: the process {_ending(code)}\n{self._tail()}" if code else ""

    def kill(self) -> None:
        """End the process and all that it started."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):  # all of them have ended
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):  # what was buffered for it is lost with it
                self._process.stdin.close()
        self._process = None

    def _send(self, data: bytes) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # that it has ended is seen when its answer is awaited
            self._process.stdin.write(data)
            self._process.stdin.flush()

    def _receive(self, timeout_s: float) -> dict[str, Any] | str:
        """The next answer, or how the process failed to give it."""
        try:
            line = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            return f"gave no answer within {timeout_s:g} s"
        if line is None:
            assert self._process is not None
            return _ending(self._process.wait())
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _tail(self) -> str:
        text = self._log.read_text(encoding="utf-8", errors="replace")
        return text[-LOG_TAIL:].strip()


def _pump(reading: int, answers: queue.Queue[str | None]) -> None:
    with os.fdopen(reading, encoding="utf-8", errors="replace") as channel:
        for line in channel:
            answers.put(line)
    answers.put(None)


def _ending(code: int) -> str:
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


__all__ = ["StartFailed", "Worker"]
