"""Find or start what is measured: a URL, an applied service, or a recipe that is served for the time of the benchmark.

Knows services and recipes; knows no load.
"""

from __future__ import annotations

import contextlib
import ssl
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from anychip.bench.memory import listener
from anychip.bench.record import NO_SLO, Slo
from anychip.bench.workload import SUFFIXES
from anychip.deploy.apply import ApplyOptions, apply
from anychip.deploy.launch import Launch, Reporter, recipe_of
from anychip.deploy.network import url_of
from anychip.deploy.secrets import first_key, key_in_variable
from anychip.deploy.services import pick, require_living
from anychip.deploy.state import Store, read_revision
from anychip.deploy.tls import trust
from anychip.recipe import Recipe, load, recipe_digest
from anychip_sdk.errors import UsageError


@dataclass(frozen=True)
class Target:
    """Something that answers.

    Attributes:
        name: as the command line says it.
        pid: of the service's first process; None: not this machine's, or another user's.
        slo: what the recipe promises.
        trust: what a service's own certificate is checked by; None: as the system does.
    """

    kind: Literal["url", "service", "recipe"]
    name: str
    url: str
    api_key: str | None = None
    pid: int | None = None
    slo: Slo = NO_SLO
    recipe_digest: str | None = None
    trust: ssl.SSLContext | None = None


@dataclass(frozen=True)
class Wanted:
    """What the command line says of the target."""

    name: str | None
    sets: Sequence[str] = ()
    timeout_s: float = 600.0
    api_key_variable: str | None = None


@contextlib.contextmanager
def open_target(wanted: Wanted, store: Store, reporter: Reporter, launch: Launch | None = None) -> Iterator[Target]:
    """The target for as long as the context lasts; what was started for it ends with it.

    Raises:
        UsageError: options don't fit the target, or there is no such service.
        PreconditionFailed: the service doesn't run, or a secret is missing.
        NotReady: the recipe's service didn't come up.
    """
    name = wanted.name
    if name is not None and name.startswith(("http://", "https://")):
        _require_no_sets(wanted, "a URL")
        yield Target("url", name, name, _key_of(wanted.api_key_variable), listener(name))
        return
    if wanted.api_key_variable is not None:
        raise UsageError("--api-key-env is for a URL; services and recipes name their key themselves")
    if name is not None and (name.endswith(SUFFIXES) or Path(name).is_file()):
        with _served(name, wanted, reporter, launch) as target:
            yield target
        return
    _require_no_sets(wanted, "a running service")
    yield _running(store, name)


def _running(store: Store, name: str | None) -> Target:
    state = require_living(store, pick(store, name))
    assert state.process is not None
    recipe = recipe_of(read_revision(store.files(state.name).revision(state.revision)))
    return Target(
        "service",
        state.name,
        url_of(recipe.server),
        first_key(recipe.server.api_key),
        state.process.pid,
        slo_of(recipe),
        state.digest,
        trust(recipe.server.tls),
    )


@contextlib.contextmanager
def _served(path: str, wanted: Wanted, reporter: Reporter, launch: Launch | None) -> Iterator[Target]:
    """Serve a recipe on a free port, apart from the user's own services; the service dies with this process."""
    loaded = load(path, sets=wanted.sets)
    options = ApplyOptions((*wanted.sets, "server.port=0"), wanted.timeout_s, foreground=True)
    with tempfile.TemporaryDirectory(prefix="anychip-bench-") as home:
        applied = apply(path, options, store=Store(Path(home)), reporter=reporter, launch=launch)
        assert applied.started is not None
        try:
            yield Target(
                "recipe",
                path,
                applied.url,
                first_key(loaded.recipe.server.api_key),
                applied.started.id.pid,
                slo_of(loaded.recipe),
                recipe_digest(loaded),
                trust(loaded.recipe.server.tls),
            )
        finally:
            applied.started.end()


def slo_of(recipe: Recipe) -> Slo:
    """What a recipe promises, as limits that each request is held to."""
    return Slo(_seconds(recipe.slo.ttft_p95), _seconds(recipe.slo.tpot_p95))


def _seconds(duration: float | None) -> float | None:
    return None if duration is None else float(duration)


def _key_of(variable: str | None) -> str | None:
    return None if variable is None else key_in_variable(variable, said_by="--api-key-env").secret


def _require_no_sets(wanted: Wanted, what: str) -> None:
    if wanted.sets:
        raise UsageError(f"--set is for a recipe; {what} runs already", hint="name the recipe's file as the target")


__all__ = ["Target", "Wanted", "open_target", "slo_of"]
