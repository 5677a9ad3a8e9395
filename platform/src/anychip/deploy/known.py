"""What is known of a service: its state file, put right by the processes that really run. Changes nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from anychip.deploy.launch import recipe_of
from anychip.deploy.running import Running, running_services
from anychip.deploy.state import Holder, ServiceState, Store, read_revision
from anychip_sdk.errors import IntegrityFailed


class Known(NamedTuple):
    """One service.

    Attributes:
        state: with the process that runs; None: nothing was ever applied, or the state is damaged and nothing runs.
        running: all its processes, more than one while it is replaced.
        holder: the other command that changes it just now.
        damage: what is wrong with its state file; None: nothing.
        note: what happened to it that no command has written down; "" where nothing did.
    """

    name: str
    state: ServiceState | None
    running: Sequence[Running]
    holder: Holder | None
    damage: IntegrityFailed | None
    note: str

    @property
    def is_running(self) -> bool:
        return bool(self.running)


def look(store: Store, name: str, running: Mapping[str, Sequence[Running]] | None = None) -> Known:
    """The service as it is now.

    Args:
        running: what `running_services` found, if it was asked already.
    """
    processes = (running_services(store.home) if running is None else running).get(name, ())
    holder = store.holder(name)
    if holder is not None and holder.process.pid == os.getpid():
        holder = None
    written, damage = None, None
    try:
        written = store.read(name)
    except IntegrityFailed as error:
        damage = error
    state = _corrected(store, name, written, processes) if processes else written
    note = "" if holder is not None else _note(written, state, bool(processes))
    return Known(name, state, processes, holder, damage, note)


def names(store: Store, running: Mapping[str, Sequence[Running]]) -> Sequence[str]:
    """Every service that has a state or a process, or is being applied for the first time."""
    return sorted({*store.names(), *running, *store.names_held()})


def _corrected(store: Store, name: str, written: ServiceState | None, processes: Sequence[Running]) -> ServiceState:
    """The state of the process that counts: the one that was written down, else the one that was started last."""
    if written is not None:
        for one in processes:
            if one.revision == written.revision and written.process is not None and one.id.pid == written.process.pid:
                return msgspec.structs.replace(written, process=one.id)
    one = processes[-1]
    if written is not None and one.revision == written.revision:
        return msgspec.structs.replace(written, process=one.id, status="running", started_at=one.id.started_at)
    return _recovered(store, name, written, one)


def _recovered(store: Store, name: str, written: ServiceState | None, one: Running) -> ServiceState:
    """The state of a process that no state tells of, from its revision."""
    known = ServiceState(
        name=name,
        revision=one.revision,
        status="running",
        process=one.id,
        host="127.0.0.1",
        port=0,
        digest="",
        recipe_path="",
        model="",
        backend="" if written is None else written.backend,
        emulated=written is not None and written.emulated,
        started_at=one.id.started_at,
    )
    try:
        revision = read_revision(store.files(name).revision(one.revision))
        recipe = recipe_of(revision)
    except (IntegrityFailed, ValueError):  # then it can be ended, no more
        return known
    return msgspec.structs.replace(
        known,
        host=recipe.server.host,
        port=recipe.server.port,
        digest=revision.digest,
        recipe_path=revision.recipe_path,
        model=recipe.server.served_name or recipe.model.source,
    )


def _note(written: ServiceState | None, state: ServiceState | None, runs: bool) -> str:
    """What a command that was killed in the midst of its work left behind."""
    if written is None or state is None:
        return ""
    now = f"revision {state.revision} runs" if runs else "nothing runs: platform apply RECIPE starts it"
    if written.successor and written.revision == state.revision:
        return f"the command that was to replace it by revision {written.successor} ended in the midst; {now}"
    if written.status == "stopped" and runs:
        return f"the command that was to end it ended itself in the midst; {now}"
    if (written.status == "loading" and not runs) or written.revision != state.revision:
        return f"the command that started revision {written.revision} ended before it was ready; {now}"
    return ""


__all__ = ["Known", "look", "names"]
