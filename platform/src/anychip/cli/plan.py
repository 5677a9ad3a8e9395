"""`platform plan`: what a recipe would become on this machine, with reasons. Knows how a plan is shown, not made."""

from __future__ import annotations

from typing import Annotated

import typer

from anychip.cli.output import EmulateOption, Output, OutputOption, SetOption, assignments, emit


def plan(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="The recipe's file.")],
    sets: SetOption = None,
    emulate: EmulateOption = False,
    output: OutputOption = Output.text,
) -> None:
    """Show what a recipe would become on this machine, and why; reads no weights. Exit code 4: something is missing."""
    from anychip.forecast.explain_costs import costs_json, costs_text
    from anychip.forecast.price import make_priced
    from anychip.plan.explain import as_json, as_text
    from anychip.recipe import load

    made, price = make_priced(load(recipe, sets=assignments(sets, emulate=emulate)).recipe)
    emit(as_json(made, costs_json(made, price)), output, text=as_text(made, costs_text(made, price)))


def register(app: typer.Typer) -> None:
    app.command()(plan)


__all__ = ["plan", "register"]
