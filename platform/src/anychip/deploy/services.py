"""Choose services and end them. Knows state and processes; starts nothing."""

from __future__ import annotations

import contextlib
import difflib
import math
import os
import time
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from anychip.deploy import log_pipe, supervisor
from anychip.deploy.known import look, names
from anychip.deploy.lock import CANCEL
from anychip.deploy.running import Running, running_services
from anychip.deploy.state import ServiceState, Store
from anychip_sdk.errors import PreconditionFailed, StateLocked, UsageError

Ending = Literal["stopped", "cancelled", "cleaned", "unchanged"]
GIVE_WAY_S = 45.0  #: how long a command may take to undo what it does
ASK_AGAIN_S = 5.0  #: what asked it to may be lost, where its handler's exception is swallowed
POLL_S = 0.05


def pick(store: Store, name: str | None) -> str:
    """The service that a command means: the one named, else the only one that lives, else the only one known.

    Raises:
        UsageError: no such service, or several to choose from.
    """
    running = running_services(store.home)
    known = names(store, running)
    if name is not None:
        if name in known:
            return name
        near = difflib.get_close_matches(name, known, n=1)
        there_are = f"known: {', '.join(known)}." if known else "there are none."
        message = f"no service '{name}'; {there_are}" + (f" Did you mean '{near[0]}'?" if near else "")
        raise UsageError(message)
    if not known:
        raise UsageError("there is no service", hint="platform apply RECIPE starts one")
    candidates = sorted(running) or known
    if len(candidates) > 1:
        raise UsageError(f"which service? There are {', '.join(candidates)}")
    return candidates[0]


def down(store: Store, name: str) -> Ending:
    """End a service, and an apply of it that is under way; only its log, state and revisions stay on the machine.

    A damaged state is put aside. Returns "cancelled" where an apply was told to give way, whatever else was ended.

    Raises:
        StateLocked: another command changes it, and does not give way.
        PreconditionFailed: it was ended, but that can't be noted.
    """
    with _lock(store, name) as has_cancelled:
        known = look(store, name)
        if known.state is not None and known.is_running and known.damage is None:
            with contextlib.suppress(PreconditionFailed):  # told again below
                store.write(msgspec.structs.replace(known.state, status="stopped", successor=0))
        ended = _end_all(store, name, known.running)
        log_pipe.wait_until_complete(store.files(name).log)
        outcome: Ending = "cancelled" if has_cancelled else "stopped" if ended else "cleaned"
        if known.damage is not None:
            store.set_aside(name)
            return outcome
        state = known.state
        if state is None or (state.process is None and state.status != "loading" and not state.successor):
            return "unchanged" if outcome == "cleaned" else outcome
        store.write(msgspec.structs.replace(state, status="stopped", process=None, successor=0))
        return outcome


def finish(store: Store, state: ServiceState) -> None:
    """Note that a service of the foreground has ended, unless another command changes it."""
    with contextlib.suppress(StateLocked), store.lock(state.name):
        now = look(store, state.name).state
        if now is not None and now.process == state.process:
            store.write(msgspec.structs.replace(now, status="stopped", process=None))


def require_living(store: Store, name: str) -> ServiceState:
    """The state of a service whose process lives.

    Raises:
        PreconditionFailed: it doesn't.
    """
    known = look(store, name)
    if known.state is None or not known.is_running:
        raise PreconditionFailed(f"service '{name}' does not run", hint="platform apply RECIPE starts it")
    return known.state


def service_on(store: Store, port: int) -> str | None:
    """The living service that listens on a port."""
    running = running_services(store.home)
    for name in running:
        state = look(store, name, running).state
        if state is not None and state.port == port:
            return name
    return None


def _end_all(store: Store, name: str, running: Sequence[Running]) -> bool:
    """End every process of the service, and what one of them starts meanwhile to bring another back."""
    has_ended = False
    while running:
        for one in running:
            has_ended |= supervisor.stop(one.id)
        running = running_services(store.home).get(name, ())
    return has_ended


@contextlib.contextmanager
def _lock(store: Store, name: str) -> Iterator[bool]:
    """The lock; an apply that holds it is asked to give way, and any other command is waited for.

    Gives whether an apply was asked.
    """
    deadline_s = time.monotonic() + GIVE_WAY_S
    asked_s: dict[int, float] = {}
    with contextlib.ExitStack() as stack:
        while True:
            try:
                stack.enter_context(store.lock(name))
                break
            except StateLocked:
                holder = store.holder(name)
                is_self = holder is not None and holder.process.pid == os.getpid()
                if time.monotonic() >= deadline_s or is_self:
                    raise
                if holder is not None and holder.is_cancellable:
                    _ask(holder.process.pid, asked_s)
                time.sleep(POLL_S)
        yield bool(asked_s)


def _ask(pid: int, asked_s: dict[int, float]) -> None:
    """Ask a command to give way, now and then."""
    now_s = time.monotonic()
    if now_s - asked_s.get(pid, -math.inf) < ASK_AGAIN_S:
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it has just ended, or is another user's
        os.kill(pid, CANCEL)
        asked_s[pid] = now_s


__all__ = ["Ending", "down", "finish", "pick", "require_living", "service_on"]
