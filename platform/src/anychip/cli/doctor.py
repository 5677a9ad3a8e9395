"""`platform doctor`: whether this machine has what a recipe or a backend needs. Knows how findings are shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from anychip.cli.output import EmulateOption, Output, OutputOption, SetOption, assignments, emit, table
from anychip_sdk.errors import UsageError

if TYPE_CHECKING:
    from anychip.doctor.diagnosis import Diagnosis
    from anychip_sdk.finding import Finding, Status

_COUNTED: dict[Status, str] = {"fail": "missing", "warn": "to look at", "ok": "in order", "info": "to know"}


def doctor(
    recipe: Annotated[str | None, typer.Argument(metavar="[RECIPE]", help="The recipe's file.")] = None,
    backend: Annotated[
        str | None, typer.Option("--backend", metavar="NAME", help="Check this backend, or the recipe on it.")
    ] = None,
    emulate: EmulateOption = False,
    sets: SetOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Check this machine: software, devices, settings, and what a recipe needs. Exit code 4: something is missing.

    Without a recipe and a backend, every installed backend is looked at, and a chip that isn't here is no failure.
    """
    found = _examine(recipe, backend, emulate, tuple(sets or ()))
    emit(found.to_json(), output, text=_text(found))
    if found.exit_code:
        raise typer.Exit(found.exit_code)


def _examine(recipe: str | None, backend: str | None, emulate: bool, sets: tuple[str, ...]) -> Diagnosis:
    from anychip.doctor.diagnosis import Diagnosis, Section
    from anychip.doctor.host import host_findings

    if recipe is None and sets:
        raise UsageError("--set needs a recipe")
    if recipe is None and backend is None and emulate:
        raise UsageError("--emulate needs a recipe or --backend")
    host = Section("host", host_findings())
    if any(one.area == "torch" and one.status == "fail" for one in host.findings):  # no backend could be loaded
        return Diagnosis((host,))
    from anychip.doctor.examine import examine_all, examine_backend, examine_recipe

    if recipe is not None:
        from anychip.deploy.state import Store
        from anychip.recipe import load
        from anychip_sdk.home import home

        sets = (*((f"backend.name={backend}",) if backend is not None else ()), *sets)
        loaded = load(recipe, sets=assignments(sets, emulate=emulate))
        return examine_recipe(loaded.recipe, host, Store(home()))
    return examine_all(host) if backend is None else examine_backend(backend, host, emulate=emulate)


def _text(found: Diagnosis) -> RenderableType:
    from rich.console import Group

    parts: list[RenderableType] = []
    for section in found.sections:
        parts += [section.title, table(None, map(_row, section.findings)), ""]
    counts = found.counts
    return Group(*parts, ", ".join(f"{counts[status]} {words}" for status, words in _COUNTED.items()))


def _row(one: Finding) -> tuple[str, str, str]:
    """What was found with what was expected, then what to do on a line of its own."""
    said = one.what + (f" (expected {one.expected})" if one.expected else "")
    said += f" [{one.source}]" if one.source else ""
    return one.status, one.area, f"{said}\n  to do: {one.hint}" if one.hint else said


def register(app: typer.Typer) -> None:
    app.command()(doctor)


__all__ = ["doctor", "register"]
