"""`platform down`: end services. Knows how the outcome is said."""

from __future__ import annotations

from typing import Annotated

import typer

from anychip.cli.names import NameArgument
from anychip.cli.output import Output, OutputOption, emit
from anychip_sdk.errors import UsageError

_SAID = {"stopped": "stopped", "cleaned": "had ended by itself; cleaned up", "unchanged": "does not run"}


def down(
    name: NameArgument = None,
    every: Annotated[bool, typer.Option("--all", help="End every service of this user.")] = False,
    purge: Annotated[bool, typer.Option("--purge", help="Forget it as well: its log, state and revisions.")] = False,
    output: OutputOption = Output.text,
) -> None:
    """End a service: let running requests finish for a moment, then leave no process and no port behind."""
    from anychip.deploy.services import down as end
    from anychip.deploy.services import pick
    from anychip.deploy.state import Store
    from anychip_sdk.home import home

    if every and name is not None:
        raise UsageError("give a NAME or --all, not both")
    store = Store(home())
    names = store.names() if every else (pick(store, name),)
    results: list[dict[str, object]] = []
    for one in names:
        results.append({"name": one, "action": end(store, one)})
        if purge:
            store.purge(one)
    said = [f"'{result['name']}' {_SAID[str(result['action'])]}{', forgotten' if purge else ''}" for result in results]
    emit({"services": results}, output, text="\n".join(said) or "there is no service")


def register(app: typer.Typer) -> None:
    app.command()(down)


__all__ = ["down", "register"]
