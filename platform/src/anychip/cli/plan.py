"""`platform plan`: what a recipe would become on this machine, with reasons. Knows how a plan is shown, not made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from anychip.cli.output import EmulateOption, Output, OutputOption, SetOption, assignments, emit
from anychip_sdk.errors import PreconditionFailed


def plan(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="The recipe's file.")],
    sets: SetOption = None,
    emulate: EmulateOption = False,
    output: OutputOption = Output.text,
) -> None:
    """Show what a recipe would become on this machine, and why; reads no weights. Exit code 4: something is missing."""
    from anychip.deploy import network
    from anychip.forecast.explain_costs import costs_json, costs_text
    from anychip.forecast.price import make_priced
    from anychip.plan.explain import as_json, as_text
    from anychip.recipe import load

    said = load(recipe, sets=assignments(sets, emulate=emulate)).recipe
    try:
        made, price = make_priced(said)
    except PreconditionFailed as error:
        raise with_more(error, network.missing(said.server)) from error
    network.require(said.server)
    told = {**as_json(made, costs_json(made, price)), "network": network.as_json(said.server)}
    emit(told, output, text=f"{as_text(made, costs_text(made, price))}\n\n{network.as_text(said.server)}")


def with_more(error: PreconditionFailed, problems: Sequence[str]) -> PreconditionFailed:
    """The error with further problems behind its own, so that all are told at once."""
    if not problems:
        return error
    more = PreconditionFailed("\n".join((str(error), *problems)))
    more.exit_code = error.exit_code
    return more


def register(app: typer.Typer) -> None:
    app.command()(plan)


__all__ = ["plan", "register"]
