"""`platform down`: end services. Knows how the outcome is said."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from anychip.cli.names import NameArgument
from anychip.cli.output import Output, OutputOption, emit, fail
from anychip_sdk.errors import AnychipError, PreconditionFailed, UsageError

if TYPE_CHECKING:
    from anychip.deploy.state import Store

_SAID = {
    "stopped": "stopped",
    "cancelled": "stopped; the apply of it that was under way was cancelled",
    "cleaned": "had ended by itself; cleaned up",
    "unchanged": "does not run",
    "failed": "could not be ended in order",
}
_NONE = "there is no service"


def down(
    name: NameArgument = None,
    every: Annotated[bool, typer.Option("--all", help="End every service of this user.")] = False,
    purge: Annotated[bool, typer.Option("--purge", help="Forget it as well: its log, state and revisions.")] = False,
    output: OutputOption = Output.text,
) -> None:
    """End a service: let running requests finish for a moment, then leave no process and no port behind."""
    from anychip.deploy.known import names
    from anychip.deploy.running import running_services
    from anychip.deploy.services import pick
    from anychip.deploy.state import Store
    from anychip_sdk.home import home

    if every and name is not None:
        raise UsageError("give a NAME or --all, not both")
    store = Store(home())
    chosen = names(store, running_services(store.home)) if every else (pick(store, name),)
    outcomes = [_end(store, one, purge) for one in chosen]
    emit({"services": [one.to_json() for one in outcomes]}, output, text="\n".join(map(str, outcomes)) or _NONE)
    problems = [one.problem for one in outcomes if one.problem is not None]
    for problem in problems[:-1]:
        fail(str(problem))
    if problems:
        raise problems[-1]


class Outcome(NamedTuple):
    """What became of one service."""

    name: str
    action: str
    is_forgotten: bool
    problem: AnychipError | None = None

    def to_json(self) -> dict[str, object]:
        problem = {} if self.problem is None else {"problem": self.problem.message}
        return {"name": self.name, "action": self.action, **problem}

    def __str__(self) -> str:
        return f"'{self.name}' {_SAID[self.action]}{', forgotten' if self.is_forgotten else ''}"


def _end(store: Store, name: str, purge: bool) -> Outcome:
    """End one service; what goes wrong doesn't keep the others from being ended."""
    from anychip.deploy.services import down as end

    action: str = "failed"
    try:
        action = end(store, name)
        if purge:
            store.purge(name)
    except AnychipError as error:
        return Outcome(name, action, False, error)
    except OSError as error:
        return Outcome(name, action, False, PreconditionFailed(f"'{name}': {error}"))
    return Outcome(name, action, purge)


def register(app: typer.Typer) -> None:
    app.command()(down)


__all__ = ["down", "register"]
