"""What one recipe needs besides its backend: checkpoint, disk, port, state, a plan. Downloads and starts nothing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from anychip.deploy.network import missing
from anychip.deploy.ports import require_free
from anychip.deploy.services import service_on
from anychip.deploy.state import Store
from anychip.doctor.diagnosis import problem
from anychip.plan.certificate import find_certificate
from anychip.plan.make import facts_of
from anychip.plan.memory import gib
from anychip.plan.plan import Plan
from anychip.plan.resolve import resolve
from anychip.recipe import Recipe
from anychip.weights.checkpoint import Checkpoint, open_checkpoint
from anychip.weights.sources import hub_folder, locate
from anychip_sdk.backend import Backend
from anychip_sdk.errors import AnychipError, DeviceAbsent, PortTaken, StateLocked
from anychip_sdk.finding import Finding

HUB_BYTES_MIN = 20 << 30  #: an 8-billion-parameter checkpoint in bfloat16, with room to spare


def recipe_findings(recipe: Recipe, backend: Backend | None, store: Store) -> list[Finding]:
    """The recipe's own needs; without model, backend or device no plan is tried."""
    found = [_port(recipe, store), _lock(recipe, store), *_network(recipe)]
    try:
        checkpoint = open_checkpoint(locate(recipe.model.source, revision=recipe.model.revision, offline=True))
    except AnychipError as error:
        return [*_without_model(recipe, error), *found, _not_tried("the model is not here")]
    with checkpoint:
        what = f"{checkpoint.path} ({checkpoint.format}), {checkpoint.config.architecture}"
        return [Finding("model", "ok", what), *found, *_plan(recipe, checkpoint, backend)]


def _without_model(recipe: Recipe, error: AnychipError) -> Iterator[Finding]:
    source, folder = recipe.model.source, hub_folder(recipe.model.source)
    if folder is None:
        yield problem("model", error, hint="set model.source to a checkpoint that is there")
        return
    hint = "apply fetches it; without a network fetch it elsewhere and name its folder"
    yield Finding("model", "warn", f"{source} cannot be had from the local cache: {error.message}", hint=hint)
    yield _disk(folder)


def _disk(folder: Path) -> Finding:
    """Room for what a hub would send."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    what = f"{free / 2**30:.1f} GiB free in {folder}"
    if free >= HUB_BYTES_MIN:
        return Finding("disk", "ok", what)
    return Finding("disk", "warn", what, f"{HUB_BYTES_MIN / 2**30:.0f} GiB for a usual model", "make room there")


def _port(recipe: Recipe, store: Store) -> Finding:
    host, port = recipe.server.host, recipe.server.port
    try:
        require_free(host, port)
    except PortTaken as error:
        owner = service_on(store, port)
        if owner == recipe.name:
            return Finding("port", "ok", f"{port} on {host} is held by '{owner}' itself, which apply replaces")
        if owner is not None:
            what = f"{port} on {host} is taken by service '{owner}'"
            return Finding("port", "fail", what, hint=f"platform down {owner}, or choose another server.port")
        return problem("port", error, hint="choose another server.port")
    except AnychipError as error:
        return problem("port", error, hint="choose another server.host or server.port")
    return Finding("port", "ok", f"{port} on {host} is free" if port else "any free one")


def _network(recipe: Recipe) -> Iterator[Finding]:
    """Keys and certificate, where the recipe names any."""
    server = recipe.server
    problems = missing(server)
    for message in problems:
        yield Finding("network", "fail", message, hint="mend that, or remove the key from the recipe")
    if not problems and (server.api_key is not None or server.tls is not None):
        yield Finding("network", "ok", "the keys and the certificate that it names are there")


def _lock(recipe: Recipe, store: Store) -> Finding:
    name = recipe.name
    if not store.files(name).lock.exists():
        return Finding("lock", "ok", f"no command has changed '{name}' yet")
    try:
        with store.lock(name):
            return Finding("lock", "ok", f"no command is changing '{name}'")
    except StateLocked as error:
        return problem("lock", error, hint="wait for that command, or end it")


def _plan(recipe: Recipe, checkpoint: Checkpoint, backend: Backend | None) -> Iterator[Finding]:
    if backend is None:
        yield _not_tried("the backend is not there")
        return
    try:
        device = backend.find_device(recipe.backend.device)
        library = recipe.backend.plugin_path
        certificate = find_certificate(backend, device, emulate=backend.emulated, library=library)
        plan = resolve(recipe, facts_of(checkpoint), backend, device, "the recipe's", certificate=certificate)
    except DeviceAbsent as error:
        yield _not_tried(error.message)
    except AnychipError as error:
        yield problem("plan", error, hint="platform plan tells more")
    else:
        yield Finding("plan", "ok", _memory_line(plan))
        for warning in plan.warnings:
            yield Finding("plan", "warn", warning, hint="platform plan shows the reasons")


def _not_tried(reason: str) -> Finding:
    return Finding("plan", "info", f"not made: {reason}")


def _memory_line(plan: Plan) -> str:
    sizes = {"weights": plan.memory.weights, "KV pool": plan.memory.kv_pool, "headroom": plan.memory.headroom}
    parts = [f"{name} {gib(size).strip()}" for name, size in sizes.items()]
    return f"{', '.join(parts)}; {plan.scheduler.kv_tokens} tokens in the pool"


__all__ = ["recipe_findings"]
