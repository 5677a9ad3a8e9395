"""How a service's process is led by the command that started it, through its standard input.

A process may be started beside the one that it replaces, its predecessor. It then stands by until it is told to take
over: it ends the predecessor itself and serves in its place. Whoever started it says in the end whether it may stay.
If the command dies before that, however it dies, the process undoes what was begun: it brings the predecessor back, or
ends itself where there is none. Knows processes; knows no recipe and no state file.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from anychip.deploy import supervisor
from anychip.deploy.process_id import ProcessId

STANDING_BY = b"standing by\n"  #: the process's answer, once it could take over
KEEP = b"keep\n"  #: it is well; end with the command
DETACH = b"detach\n"  #: it is well; outlive the command


class Relaunch(msgspec.Struct, frozen=True):
    """All that starting a process takes."""

    command: Sequence[str]
    log_path: str
    folder: str | None
    environ: Mapping[str, str]

    def start(self) -> supervisor.Started:
        folder = None if self.folder is None else Path(self.folder)
        return supervisor.start(self.command, Path(self.log_path), folder=folder, environ=self.environ)


class TakeOver(msgspec.Struct, frozen=True):
    """The order to end others and to serve in their place.

    Attributes:
        predecessors: to be ended, the serving one last.
        restore: brings the predecessor back if the command dies too early; None: don't.
    """

    predecessors: Sequence[ProcessId]
    restore: Relaunch | None = None

    def line(self) -> bytes:
        # json, as msgspec refuses the half characters by which Python holds variables that aren't UTF-8
        return json.dumps(msgspec.to_builtins(self)).encode() + b"\n"


def follow_leash(grace_s: float = supervisor.GRACE_S, *, stand_by: bool = False) -> None:
    """In the service: do as the command says, and undo what was begun when it dies.

    Args:
        grace_s: how long a process has for its end.
        stand_by: return only when told to take over, after the predecessors have ended.
    """
    orders: queue.SimpleQueue[TakeOver] = queue.SimpleQueue()
    threading.Thread(target=_follow, args=(orders, stand_by, grace_s), name="leash", daemon=True).start()
    if stand_by:
        for one in orders.get().predecessors:
            supervisor.stop(one, grace_s)


def bring_back(relaunch: Relaunch, predecessors: Sequence[ProcessId]) -> supervisor.Started:
    """Start a process that ends others, serves in their place and depends on nobody."""
    started = relaunch.start()
    started.say(TakeOver(predecessors).line() + DETACH)
    return started


def _follow(orders: queue.SimpleQueue[TakeOver], stand_by: bool, grace_s: float) -> None:
    with os.fdopen(os.dup(0), "rb") as said:
        order = None
        if stand_by:
            with contextlib.suppress(OSError):  # nobody listens where it depends on nobody
                os.write(0, STANDING_BY)
            order = _take_over(_line(said))
            if order is None:
                os._exit(0)  # nothing was begun
            orders.put(order)
        line = _line(said)
        if line == KEEP:
            order = None
            line = _line(said)
    if line == DETACH:
        return
    if order is not None and order.restore is not None:
        bring_back(order.restore, [supervisor.identify(os.getpid()), *order.predecessors])
        return  # that one ends this process
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(grace_s)
    os.kill(os.getpid(), signal.SIGKILL)


def _line(said: BinaryIO) -> bytes:
    """The next order; empty where the command is gone."""
    try:
        return said.readline()
    except OSError:
        return b""


def _take_over(line: bytes) -> TakeOver | None:
    with contextlib.suppress(ValueError, msgspec.MsgspecError):
        return msgspec.convert(json.loads(line), TakeOver)
    return None


__all__ = ["DETACH", "KEEP", "STANDING_BY", "Relaunch", "TakeOver", "bring_back", "follow_leash"]
