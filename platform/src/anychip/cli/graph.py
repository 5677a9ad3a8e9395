"""`platform graph`: a model's graph after any step of the rewriting. Knows the steps' names, not their work."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from anychip.cli.output import EmulateOption, SetOption, assignments, emit_raw

if TYPE_CHECKING:
    from anychip.plan.make import Prepared


class Step(str, Enum):
    """A named step of the rewriting."""

    trace = "trace"
    expand = "expand"
    replaced = "replace"
    fold = "fold"
    quantize = "quantize"
    program = "program"
    codegen = "codegen"


def graph(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="The recipe's file.")],
    after: Annotated[Step, typer.Option("--after", help="The step whose result is shown.")] = Step.quantize,
    sets: SetOption = None,
    emulate: EmulateOption = False,
) -> None:
    """Show the model after a step: the graph of trace to quantize, the program, or the Python of codegen."""
    from anychip.plan.make import prepare
    from anychip.recipe import load

    prepared = prepare(load(recipe, sets=assignments(sets, emulate=emulate)).recipe)
    try:
        emit_raw(_text(prepared, after))
    finally:
        prepared.checkpoint.close()


def _text(prepared: Prepared, after: Step) -> str:
    from anychip.graph.codegen import source_of
    from anychip.graph.expand import expand
    from anychip.graph.fold import fold
    from anychip.graph.ir import as_text
    from anychip.graph.trace import trace_config
    from anychip.plan.resolve import unfolded

    plan, config = prepared.plan, prepared.plan.model.config
    if after is Step.trace:
        return as_text(trace_config(config))
    if after is Step.expand:
        return as_text(expand(trace_config(config)))
    if after is Step.codegen:
        return source_of(plan.program, plan.pieces)
    if after is Step.program:
        return str(plan.program)
    if after is Step.quantize:
        return as_text(plan.graph)
    graph = unfolded(config, plan.binding)
    if after is Step.fold:
        fold(graph, plan.binding, [one.policy for one in plan.fusions if one.applied], prepared.backend.fusions)
    return as_text(graph)


def register(app: typer.Typer) -> None:
    app.command()(graph)


__all__ = ["Step", "graph", "register"]
