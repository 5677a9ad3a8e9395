"""`platform plugin new|check`: start a backend's package, and see whether one is whole. Knows how it is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anychip.cli.output import Output, OutputOption, emit

plugin_app = typer.Typer(help="For those who write a backend.", no_args_is_help=True)


@plugin_app.command()
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The backend's name in recipes, e.g. acme.")],
    directory: Annotated[
        Path | None, typer.Option("--directory", "-d", help="Where the package's folder goes. Default: here.")
    ] = None,
    output: OutputOption = Output.text,
) -> None:
    """Write a package that passes the conformance profile `bringup` on its first day."""
    from anychip_sdk.scaffold import scaffold

    written = scaffold(name, directory)
    value = {"name": written.names.name, "distribution": written.names.distribution, "module": written.names.module}
    data: dict[str, object] = {**value, "folder": str(written.folder), "files": list(written.files)}
    lines = [
        *(f"{written.folder / file}" for file in written.files),
        "",
        f"pip install -e {written.folder}",
        f"platform plugin check {name}",
        f"platform conformance run {name} --profile bringup",
    ]
    emit(data, output, text="\n".join(lines))


@plugin_app.command()
def check(
    subjects: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME|WHEEL]...", help="Installed backends or wheels. Default: every installed one."),
    ] = None,
    output: OutputOption = Output.text,
) -> None:
    """Compare wheel, conformance.yaml and registration. Exit 4: it can't be relied upon; 7: claims are untrue."""
    from anychip_sdk.check import as_text, check_plugins, exit_code

    named: list[str | None] = [*(subjects or ())] or [None]
    reports = [report for subject in named for report in check_plugins(subject)]
    emit({"plugins": [report.as_json() for report in reports]}, output, text="\n".join(map(as_text, reports)))
    if code := exit_code(reports):
        raise typer.Exit(code)


def register(app: typer.Typer) -> None:
    app.add_typer(plugin_app, name="plugin")


__all__ = ["check", "new", "plugin_app", "register"]
