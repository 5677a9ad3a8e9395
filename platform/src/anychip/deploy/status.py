"""Tell how a service is. Knows state, processes and HTTP; changes nothing."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from anychip.deploy.client import ServiceClient, endpoint
from anychip.deploy.condition import condition_of
from anychip.deploy.known import Known, look
from anychip.deploy.launch import recipe_of
from anychip.deploy.network import client_of, url_of
from anychip.deploy.running import Running
from anychip.deploy.state import ServiceState, Store, read_revision
from anychip.recipe.schema import ServerSection
from anychip_sdk.errors import AnychipError, UsageError

Condition = Literal["running", "loading", "hung", "unhealthy", "dead", "stopped", "failed", "damaged"]


@dataclass(frozen=True)
class ServiceStatus:
    """One service as it is now; numbers are None where the service doesn't tell.

    Attributes:
        condition: running; loading; hung (the engine or the process gives no sign of life); unhealthy (the process
            lives and isn't ready); dead (it ended by itself); stopped (by `down`); failed (it never became ready);
            damaged (its state file can't be read).
        kv_use: the share of the KV pool that running requests hold, 0 to 1; cached prefixes don't count.
    """

    name: str
    condition: Condition
    revision: int = 0
    url: str = ""
    model: str = ""
    backend: str = ""
    emulated: bool = False
    pid: int | None = None
    uptime_s: float | None = None
    requests_running: int | None = None
    requests_waiting: int | None = None
    kv_use: float | None = None
    engine_restarts: int | None = None
    recipe_path: str = ""
    log_path: str = ""
    detail: str = ""

    def to_json(self) -> dict[str, object]:
        return asdict(self)


def status_of(store: Store, name: str, running: Mapping[str, Sequence[Running]] | None = None) -> ServiceStatus:
    """The service as it is now; never raises for what is wrong with it.

    Args:
        running: what `running_services` found, if it was asked already.
    """
    known = look(store, name, running)
    if known.state is None and known.damage is None and known.holder is None:
        raise UsageError(f"no service '{name}'")
    said = [] if known.damage is None else [known.damage.message]
    said += [f"{known.holder} is changing it"] if known.holder is not None else []
    said += [known.note] if known.note else []
    status = _status(store, known)
    return replace(status, detail="; ".join([*said, *([status.detail] if status.detail else [])]))


def _status(store: Store, known: Known) -> ServiceStatus:
    log_path = str(store.files(known.name).log)
    state = known.state
    if state is None:  # nothing was started yet, where nothing is damaged
        return ServiceStatus(known.name, "damaged" if known.damage is not None else "loading", log_path=log_path)
    status = ServiceStatus(
        known.name,
        "stopped",
        state.revision,
        _url(store, state),
        state.model,
        state.backend,
        state.emulated,
        recipe_path=state.recipe_path,
        log_path=log_path,
    )
    if known.is_running:
        return _living(store, state, status)
    if state.process is None or state.status == "stopped":
        return replace(status, condition="failed" if state.status == "failed" else "stopped")
    return replace(status, condition="dead", detail=f"its process {state.process.pid} ended by itself")


def connect(store: Store, state: ServiceState) -> ServiceClient:
    """A client for a service, with the key that its recipe refers to.

    Raises:
        PreconditionFailed: the recipe's api_key refers to something that isn't there for this command.
    """
    return client_of(_server_of(store, state))


def _server_of(store: Store, state: ServiceState) -> ServerSection:
    return recipe_of(read_revision(store.files(state.name).revision(state.revision))).server


def _url(store: Store, state: ServiceState) -> str:
    try:
        return url_of(_server_of(store, state))
    except AnychipError:  # the revision can't be read: the state alone is known
        return endpoint(state.host, state.port)


def _anonymous(store: Store, state: ServiceState) -> ServiceClient:
    """A client that asks what needs no key."""
    try:
        return client_of(_server_of(store, state), with_key=False)
    except AnychipError:
        return ServiceClient(state.host, state.port)


def _living(store: Store, state: ServiceState, status: ServiceStatus) -> ServiceStatus:
    assert state.process is not None
    uptime_s = max(time.time() - state.process.started_at, 0.0)  # both move when the clock is set
    status = replace(status, pid=state.process.pid, uptime_s=uptime_s)
    with _anonymous(store, state) as client:
        health = client.health()
    if not health.is_ready:
        condition, detail = condition_of(health, state.process.pid, may_load=state.status == "loading")
        return replace(status, condition=condition, detail=detail)
    try:
        with connect(store, state) as client:
            return replace(status, condition="running", **_numbers(client.info()))
    except AnychipError as error:  # no key at hand, say: it runs all the same
        return replace(status, condition="running", detail=error.message)


def _numbers(info: Mapping[str, object]) -> dict[str, Any]:
    """What status shows of /server_info; a number that isn't there stays None."""
    stats = info.get("stats")
    if not isinstance(stats, dict):
        return {}
    found: dict[str, Any] = {}
    for field, name in (("requests_running", "running"), ("requests_waiting", "waiting")):
        if isinstance(stats.get(name), (int, float)):
            found[field] = int(stats[name])
    pages = [stats.get(name) for name in ("pages_total", "pages_free", "pages_evictable")]
    total, free, evictable = (float(count) if isinstance(count, (int, float)) else None for count in pages)
    if total and free is not None and evictable is not None:
        found["kv_use"] = (total - free - evictable) / total
    if isinstance(info.get("restarts"), int):
        found["engine_restarts"] = info["restarts"]
    return found


__all__ = ["Condition", "ServiceStatus", "connect", "status_of"]
