"""The worker's process: builds a core, steps it while there is work, and dies with its parent.

Knows messages; knows no HTTP and no model.

Started as `python -m anychip.engine.worker` with its standard input on a pipe that the parent holds open: the end of
that pipe is the end of the parent. A core is whatever the factory returns, see `Core`.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Protocol

import structlog
import zmq

from anychip.engine import messages
from anychip.engine.garbage import keep_for_good
from anychip.engine.logs import configure_logs
from anychip.engine.pulse import Pulse
from anychip.engine.request import GenerateRequest, TokenEvent
from anychip.engine.stacks import write_stacks_to
from anychip_sdk.errors import AnychipError, DeviceLost, QueueFull, RequestInvalid, UsageError

PR_SET_PDEATHSIG = 1
#: Steps may fail so often in a row, each failing the requests it held, before the worker gives up.
MAX_FAILURES_IN_A_ROW = 3

log = structlog.get_logger("anychip.worker")

ReportProgress = Callable[[messages.Progress], None]


class Core(Protocol):
    """What the worker drives; all calls come from one thread."""

    @property
    def model(self) -> messages.ModelFacts: ...
    @property
    def has_work(self) -> bool: ...
    def watch(self, pulse: Pulse) -> None: ...
    def add(self, request: GenerateRequest) -> None: ...
    def abort(self, request_id: str) -> list[TokenEvent]: ...
    def stop(self, request_id: str, index: int) -> None: ...
    def step(self) -> list[TokenEvent]: ...
    def stats(self) -> dict[str, float]: ...
    def flush_cache(self) -> bool: ...
    def fail_all(self, reason: str) -> list[TokenEvent]: ...
    def close(self) -> None: ...


#: Builds a core from a JSON value, telling how far it is, and returns it warm.
CoreFactory = Callable[[object, ReportProgress], Core]


def load_factory(spec: str) -> CoreFactory:
    """The callable at `package.module:name`."""
    module_name, _, name = spec.partition(":")
    if not module_name or not name:
        raise UsageError(f"core factory {spec!r}: expected package.module:callable")
    factory = getattr(importlib.import_module(module_name), name, None)
    if not callable(factory):
        raise UsageError(f"core factory {spec!r}: {module_name} has no callable {name}")
    return factory  # type: ignore[no-any-return]


class Worker:
    """The loop between the socket and the core.

    Args:
        socket: to the server.
        pulse: by which others see where the loop is; None: nobody looks.
    """

    def __init__(self, socket: zmq.Socket[bytes], pulse: Pulse | None = None) -> None:
        self._socket = socket
        self._pulse = pulse or Pulse()
        self._failures = 0
        self._stopping = False

    def send(self, message: messages.FromWorker) -> None:
        self._socket.send(messages.encode(message))

    def run(self, core: Core) -> None:
        """Serve until told to shut down."""
        core.watch(self._pulse)
        while not self._stopping:
            self._receive(core)
            if core.has_work and not self._stopping:
                self._step(core)

    def _receive(self, core: Core) -> None:
        """Handle every message that is there; wait for one when there is nothing else to do."""
        wait_ms = 0 if core.has_work else None
        if wait_ms is None:
            self._pulse.rest()
        while not self._stopping and self._socket.poll(wait_ms):
            self._pulse.turn()
            self._handle(messages.decode_to_worker(self._socket.recv()), core)
            wait_ms = 0

    def _step(self, core: Core) -> None:
        self._pulse.turn()
        try:
            events = core.step()
            self._failures = 0
        except DeviceLost as error:
            self._send_events(core.fail_all(str(error)))
            raise
        except Exception as error:
            self._failures += 1
            if self._failures >= MAX_FAILURES_IN_A_ROW:
                raise
            log.exception("step failed", failures=self._failures)
            events = core.fail_all(f"the engine failed in a step: {type(error).__name__}: {error}")
        self._send_events(events)

    def _send_events(self, events: list[TokenEvent]) -> None:
        if events:
            self.send(messages.Events(events))

    def _handle(self, message: messages.ToWorker, core: Core) -> None:
        match message:
            case messages.Submit(request):
                self._add(request, core)
            case messages.Abort(request_id):
                self._send_events(core.abort(request_id))
            case messages.Stop(request_id, index):
                core.stop(request_id, index)
            case messages.AskStats(call):
                self.send(messages.Stats(call, core.stats()))
            case messages.Flush(call):
                self.send(messages.Flushed(call, core.flush_cache()))
            case messages.Shutdown():
                self._stopping = True

    def _add(self, request: GenerateRequest, core: Core) -> None:
        try:
            core.add(request)
        except Exception as error:
            self.send(refusal(request.id, error))
        else:
            self.send(messages.Accepted(request.id))


def refusal(request_id: str, error: Exception) -> messages.Refused:
    """The message for a request that the core did not take; an unforeseen error refuses that one request only."""
    if isinstance(error, RequestInvalid):
        return messages.Refused(request_id, "invalid", error.message, error.param, error.code, error.status)
    if isinstance(error, QueueFull):
        return messages.Refused(request_id, "queue_full", error.message, status=429, retry_after_s=error.retry_after_s)
    log.error("request could not be added", request=request_id, exc_info=error)
    return messages.Refused(request_id, "internal", f"{type(error).__name__}: {error}", status=500)


def die_with_parent(parent_pid: int) -> None:
    """End this process when its parent ends, however the parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:  # it died before the line above took effect
        os._exit(1)
    threading.Thread(target=_exit_at_end_of_stdin, name="parent-watch", daemon=True).start()


def _exit_at_end_of_stdin() -> None:
    while os.read(0, 1024):
        pass
    os._exit(1)


def _ask_to_stop(_signal: int, _frame: object) -> None:
    raise SystemExit(0)


def _load(worker: Worker, factory_spec: str, argument: object) -> Core:
    started_s = time.monotonic()
    worker.send(messages.Progress("starting"))
    core = load_factory(factory_spec)(argument, worker.send)
    keep_for_good()
    worker.send(messages.Ready(time.monotonic() - started_s, core.model))
    return core


def _failure(error: Exception) -> messages.Failed:
    if isinstance(error, AnychipError):
        return messages.Failed(error.message, error.hint, error.exit_code)
    return messages.Failed(f"{type(error).__name__}: {error}")


def main(factory_spec: str, argument: object, endpoint: str, pulse: Pulse | None = None) -> int:
    """Build the core, report ready and serve until the end; returns the process's exit code."""
    context = zmq.Context()
    socket = context.socket(zmq.PAIR)
    socket.set_hwm(0)  # a slow server must not stop the steps
    socket.linger = 1000  # ms: the reason for a failure must still arrive
    socket.connect(endpoint)
    worker = Worker(socket, pulse)
    core: Core | None = None
    try:
        core = _load(worker, factory_spec, argument)
        worker.run(core)
    except Exception as error:
        if not isinstance(error, AnychipError):
            log.exception("worker failed")
        failure = _failure(error)
        worker.send(failure)
        return failure.exit_code
    finally:
        if core is not None:
            core.close()
        context.destroy()
    return 0


def _run() -> None:
    parser = argparse.ArgumentParser(prog="python -m anychip.engine.worker", allow_abbrev=False)
    parser.add_argument("--factory", required=True, help="package.module:callable that builds the core")
    parser.add_argument("--argument", required=True, help="the factory's argument, as JSON")
    parser.add_argument("--endpoint", required=True, help="where the server listens")
    parser.add_argument("--parent-pid", required=True, type=int)
    parser.add_argument("--pulse", required=True, type=int, metavar="FD", help="memory that the server reads")
    parser.add_argument("--stacks", required=True, type=int, metavar="FD", help="where stacks are written on demand")
    parser.add_argument("--beat-s", required=True, type=float, help="seconds between heartbeats")
    options = parser.parse_args()
    configure_logs()
    write_stacks_to(options.stacks)
    pulse = Pulse(options.pulse)
    pulse.beat_on(options.beat_s)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: the server decides
    signal.signal(signal.SIGTERM, _ask_to_stop)
    die_with_parent(options.parent_pid)
    raise SystemExit(main(options.factory, json.loads(options.argument), options.endpoint, pulse))


if __name__ == "__main__":
    _run()

__all__ = ["Core", "CoreFactory", "ReportProgress", "Worker", "die_with_parent", "load_factory", "main", "refusal"]
