"""`platform backends`: which backends are installed. Knows how it is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from anychip.cli.output import Output, OutputOption, emit, table

if TYPE_CHECKING:
    from anychip.backends import InstalledBackend


def backends(
    load: Annotated[bool, typer.Option("--load", help="Import each one and check it against the contract.")] = False,
    output: OutputOption = Output.text,
) -> None:
    """List the installed backends, from metadata alone. ANYCHIP_PLUGINS=a,b limits them to those."""
    from anychip.backends import installed

    found = installed()
    checked = [_loaded(one) for one in found] if load else [{} for _ in found]
    rows = [{**_metadata(one), **more} for one, more in zip(found, checked, strict=True)]
    emit({"backends": rows}, output, text=_text(rows, load))


def _metadata(one: InstalledBackend) -> dict[str, object]:
    return {
        "name": one.name,
        "distribution": one.distribution,
        "version": one.version,
        "module": one.module,
        "duplicates": list(one.duplicates),
    }


def _loaded(one: InstalledBackend) -> dict[str, object]:
    from anychip.backends import load
    from anychip_sdk.errors import AnychipError

    try:
        backend = load(one.name)
    except AnychipError as error:
        return {"error": str(error)}
    info = backend.info
    return {
        "vendor": info.vendor,
        "api": info.api,
        "requirements": {name: text for name, text in vars(info.requirements).items() if text},
        "claims": dict(info.claims),
        "hooks": [name.removeprefix("anychip_") for name in backend.hooks_implemented()],
    }


def _text(rows: list[dict[str, object]], load: bool) -> RenderableType:
    from rich.console import Group

    if not rows:
        return "no backend is installed"
    headers = ["NAME", "DISTRIBUTION", "VERSION", "MODULE"] + (["API", "VENDOR", "HOOKS"] if load else [])
    problems = [f"{row['name']}: {row['error']}" for row in rows if "error" in row]
    problems += [
        f"{row['name']}: also offered by {', '.join(map(str, duplicates))}"
        for row in rows
        if isinstance(duplicates := row["duplicates"], list) and duplicates and "error" not in row
    ]
    return Group(table(headers, [_row(row, load) for row in rows]), *problems)


def _row(row: dict[str, object], load: bool) -> list[str]:
    cells = [str(row[key]) for key in ("name", "distribution", "version", "module")]
    if not load:
        return cells
    if "error" in row:
        return [*cells, "broken", "-", "-"]
    hooks = row["hooks"]
    return [*cells, str(row["api"]), str(row["vendor"]), " ".join(hooks) if isinstance(hooks, list) else ""]


def register(app: typer.Typer) -> None:
    app.command()(backends)


__all__ = ["backends", "register"]
