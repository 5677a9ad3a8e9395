"""Show results on stdout and progress on stderr, as text or as JSON. Knows no verb."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import IO, Annotated

import typer
from rich.console import Console, RenderableType
from rich.table import Table

SCHEMA_VERSION = 1
_UNBOUNDED_COLUMNS = 10_000  # a pipe has no width, so nothing is cut or wrapped


class Output(str, Enum):
    """How a result is shown."""

    text = "text"
    json = "json"


OutputOption = Annotated[Output, typer.Option("--output", "-o", help="Show the result as text or as JSON.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set a key of the recipe, e.g. server.port=8001; repeatable."),
]
EmulateOption = Annotated[
    bool,
    typer.Option("--emulate", help="On the backend's emulator, without its chip: --set backend.emulate=true."),
]


def assignments(sets: Sequence[str] | None, *, emulate: bool = False) -> tuple[str, ...]:
    """What the options of a command line set in a recipe."""
    return (*(sets or ()), *(("backend.emulate=true",) if emulate else ()))


def emit(value: Mapping[str, object], output: Output, text: RenderableType | None = None) -> None:
    """Put a result on stdout.

    Args:
        value: the result as JSON values; gets `schema_version` in JSON.
        output: text or json.
        text: what to show as text; None: the value's entries, one a line.
    """
    if output is Output.json:
        document = {"schema_version": SCHEMA_VERSION, **value}
        sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    else:
        result_console().print(pairs(value) if text is None else text, markup=False, highlight=False)


def emit_raw(text: str) -> None:
    """Put text on stdout as it is, for documents that are files in themselves."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


def pairs(value: Mapping[str, object]) -> Table:
    """A mapping, one entry a line."""
    return table(None, ((key, str(item)) for key, item in value.items()))


def table(headers: Sequence[str] | None, rows: Iterable[Sequence[str]]) -> Table:
    """Columns without lines around them, so that they can be cut and searched."""
    columns = Table(box=None, show_header=headers is not None, pad_edge=False, header_style="bold")
    for header in headers or ():
        columns.add_column(header, overflow="fold")
    for row in rows:
        columns.add_row(*row)
    return columns


def result_console() -> Console:
    """Where results go. Colours only on a terminal, and never where NO_COLOR is set."""
    return _console(sys.stdout)


def progress_console() -> Console:
    """Where progress, warnings and errors go."""
    return _console(sys.stderr)


def fail(message: str) -> None:
    """Show an error; where nobody can see it, the exit code tells."""
    with contextlib.suppress(OSError):  # the terminal is gone, or the disk that standard error is written to is full
        progress_console().print(message, markup=False, highlight=False, soft_wrap=True)


def _console(stream: IO[str]) -> Console:
    return Console(file=stream, width=None if stream.isatty() else _UNBOUNDED_COLUMNS, emoji=False)


__all__ = [
    "SCHEMA_VERSION",
    "EmulateOption",
    "Output",
    "OutputOption",
    "SetOption",
    "assignments",
    "emit",
    "emit_raw",
    "fail",
    "pairs",
    "progress_console",
    "result_console",
    "table",
]
