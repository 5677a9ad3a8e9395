"""Look at services and end them. Knows state, processes and HTTP; starts nothing."""

from __future__ import annotations

import difflib
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

import msgspec

from anychip.deploy import log_pipe, supervisor
from anychip.deploy.client import ServiceClient, endpoint
from anychip.deploy.launch import recipe_of
from anychip.deploy.network import client_of, url_of
from anychip.deploy.state import ServiceState, Store, read_revision
from anychip.recipe.schema import ServerSection
from anychip_sdk.errors import AnychipError, IntegrityFailed, PreconditionFailed, UsageError

Condition = Literal["running", "loading", "unhealthy", "dead", "stopped", "failed", "damaged"]
Ending = Literal["stopped", "cleaned", "unchanged"]


@dataclass(frozen=True)
class ServiceStatus:
    """One service as it is now; numbers are None where the service doesn't tell.

    Attributes:
        condition: running; loading; unhealthy (the process lives, the engine doesn't answer); dead (it ended by
            itself); stopped (by `down`); failed (it never became ready); damaged (its state file can't be read).
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


def pick(store: Store, name: str | None) -> str:
    """The service that a command means: the one named, else the only one that lives, else the only one known.

    Raises:
        UsageError: no such service, or several to choose from.
    """
    names = store.names()
    if name is not None:
        if name in names:
            return name
        near = difflib.get_close_matches(name, names, n=1)
        known = f"known: {', '.join(names)}." if names else "there are none."
        message = f"no service '{name}'; {known}" + (f" Did you mean '{near[0]}'?" if near else "")
        raise UsageError(message)
    if not names:
        raise UsageError("there is no service", hint="platform apply RECIPE starts one")
    living = [one for one in names if _lives(store, one)]
    candidates = living or names
    if len(candidates) > 1:
        raise UsageError(f"which service? There are {', '.join(candidates)}")
    return candidates[0]


def status_of(store: Store, name: str) -> ServiceStatus:
    """The service as it is now; never raises for what is wrong with it."""
    files = store.files(name)
    try:
        state = store.read(name)
    except IntegrityFailed as error:
        return ServiceStatus(name, "damaged", log_path=str(files.log), detail=error.message)
    if state is None:
        raise UsageError(f"no service '{name}'")
    known = ServiceStatus(
        name,
        "stopped",
        state.revision,
        _url(store, state),
        state.model,
        state.backend,
        state.emulated,
        recipe_path=state.recipe_path,
        log_path=str(files.log),
    )
    if state.process is None:
        return _with(known, condition="failed" if state.status == "failed" else "stopped")
    if not supervisor.is_alive(state.process):
        detail = f"its process {state.process.pid} ended by itself"
        return _with(known, condition="dead", detail=detail)
    return _living(store, state, known)


def down(store: Store, name: str) -> Ending:
    """End a service; what it had is gone from the machine but for its log, state and revisions.

    Raises:
        StateLocked: another command changes it.
    """
    with store.lock(name):
        state = store.read(name)
        if state is None or state.process is None:
            return "unchanged"
        was_alive = supervisor.stop(state.process)
        log_pipe.wait_until_complete(store.files(name).log)
        store.write(msgspec.structs.replace(state, status="stopped", process=None))
        return "stopped" if was_alive else "cleaned"


def finish(store: Store, state: ServiceState) -> None:
    """Note that a service of the foreground has ended, unless another command changed it meanwhile."""
    now = store.read(state.name)
    if now is not None and now.process == state.process:
        store.write(msgspec.structs.replace(now, status="stopped", process=None))


def connect(store: Store, state: ServiceState) -> ServiceClient:
    """A client for a service, with the key that its recipe refers to.

    Raises:
        PreconditionFailed: the recipe's api_key refers to something that isn't there for this command.
    """
    return client_of(server_of(store, state))


def server_of(store: Store, state: ServiceState) -> ServerSection:
    """What the recipe of a service's revision says of its server. Raises IntegrityFailed where the file is damaged."""
    return recipe_of(read_revision(store.files(state.name).revision(state.revision))).server


def require_living(store: Store, name: str) -> ServiceState:
    """The state of a service whose process lives.

    Raises:
        PreconditionFailed: it doesn't.
    """
    state = store.read(name)
    if state is None or not supervisor.is_alive(state.process):
        raise PreconditionFailed(f"service '{name}' does not run", hint="platform apply RECIPE starts it")
    return state


def service_on(store: Store, port: int) -> str | None:
    """The living service that listens on a port."""
    for name in store.names():
        if _lives(store, name):
            state = store.read(name)
            if state is not None and state.port == port:
                return name
    return None


def _url(store: Store, state: ServiceState) -> str:
    try:
        return url_of(server_of(store, state))
    except IntegrityFailed:  # the state alone is known
        return endpoint(state.host, state.port)


def _lives(store: Store, name: str) -> bool:
    try:
        state = store.read(name)
    except IntegrityFailed:
        return False
    return state is not None and supervisor.is_alive(state.process)


def _living(store: Store, state: ServiceState, known: ServiceStatus) -> ServiceStatus:
    assert state.process is not None
    known = _with(known, pid=state.process.pid, uptime_s=max(time.time() - state.started_at, 0.0))
    with client_of(server_of(store, state), with_key=False) as client:
        health = client.health()
    if not health.is_ready:
        is_loading = health.state == "loading" or (health.state == "unreachable" and state.status == "loading")
        return _with(known, condition="loading" if is_loading else "unhealthy", detail=health.stage or health.state)
    try:
        with connect(store, state) as client:
            return _with(known, condition="running", **_numbers(client.info()))
    except AnychipError as error:  # no key at hand, say: it runs all the same
        return _with(known, condition="running", detail=error.message)


def _numbers(info: Mapping[str, object]) -> dict[str, object]:
    """What status shows of /server_info; a number that isn't there stays None."""
    stats = info.get("stats")
    if not isinstance(stats, dict):
        return {}
    found: dict[str, object] = {}
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


def _with(status: ServiceStatus, **changes: object) -> ServiceStatus:
    return ServiceStatus(**{**asdict(status), **changes})


__all__ = [
    "Condition",
    "Ending",
    "ServiceStatus",
    "connect",
    "down",
    "finish",
    "pick",
    "require_living",
    "server_of",
    "service_on",
    "status_of",
]
