"""Which checks are made for a recipe, a backend, or all that is here. Knows the order; makes no check itself."""

from __future__ import annotations

from collections.abc import Iterator

from anychip import backends
from anychip.deploy.state import Store
from anychip.doctor.backend import MEMORY_SHARE_MIN, backend_findings
from anychip.doctor.diagnosis import Diagnosis, Section, problem
from anychip.doctor.recipe import recipe_findings
from anychip.recipe import Recipe
from anychip_sdk.backend import Backend
from anychip_sdk.errors import AnychipError
from anychip_sdk.finding import Finding


def examine_recipe(recipe: Recipe, host: Section, store: Store) -> Diagnosis:
    """Everything that the recipe needs."""
    wanted = recipe.backend
    backend: Backend | None = None
    try:
        backend = backends.choose(wanted.name, wanted.plugin_path, emulate=wanted.emulate).backend
    except AnychipError as error:
        found = [problem("plugin", error, hint="platform backends --load shows which load")]
    else:
        share = recipe.memory.static_fraction if recipe.memory.kv_tokens is None else MEMORY_SHARE_MIN
        found = backend_findings(backend, share=share, library=wanted.plugin_path)
    name = wanted.name if backend is None else backend.name
    own = recipe_findings(recipe, backend, store)
    return Diagnosis((host, Section(f"backend {name}", found), Section(f"recipe {recipe.name}", own)))


def examine_backend(name: str, host: Section, *, emulate: bool = False) -> Diagnosis:
    """One backend, as if a recipe named it."""
    try:
        found = backend_findings(backends.load(name, emulate=emulate))
    except AnychipError as error:
        found = [problem("plugin", error, hint="platform backends --load shows which load")]
    return Diagnosis((host, Section(f"backend {name}", found)))


def examine_all(host: Section) -> Diagnosis:
    """Every installed backend; that a chip isn't here is no failure where nobody asked for it."""
    return Diagnosis((host, *_all_backends()))


def _all_backends() -> Iterator[Section]:
    for one in backends.probe_all():
        title = f"backend {one.installed.name}"
        if one.backend is not None and one.devices:
            yield Section(title, backend_findings(one.backend))
        elif one.error is not None:
            hint = f"repair or uninstall {one.installed.distribution}"
            yield Section(title, [problem("plugin", one.error, hint=hint, status="warn")])
        else:
            absence = one.backend.info.absence if one.backend is not None else ""
            hint = f"platform doctor --backend {one.installed.name} tells what it needs"
            yield Section(title, [Finding("device", "info", absence or "no device present", hint=hint)])


__all__ = ["examine_all", "examine_backend", "examine_recipe"]
