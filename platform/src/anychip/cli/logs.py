"""`platform logs`: a service's output. Knows how it is shown."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from anychip.cli.names import NameArgument
from anychip.cli.output import emit_raw


def logs(
    name: NameArgument = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Show what is added, until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("--tail", metavar="N", min=0, help="How many of the last lines to show.")] = 100,
) -> None:
    """Show the log of a service, also of one that has ended."""
    from anychip.deploy import logs as reading
    from anychip.deploy.services import pick
    from anychip.deploy.state import Store
    from anychip_sdk.home import home

    store = Store(home())
    path = store.files(pick(store, name)).log
    size = path.stat().st_size if path.exists() else 0
    last = reading.tail(path, lines)
    if last:
        emit_raw("\n".join(last))
    if follow:
        for text in reading.follow(path, size, lambda: True):
            sys.stdout.write(text)
            sys.stdout.flush()


def register(app: typer.Typer) -> None:
    app.command()(logs)


__all__ = ["logs", "register"]
