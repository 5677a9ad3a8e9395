"""`platform ops`: the operator probe. Knows how the table is shown; the plan knows the ops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from anychip.cli.output import EmulateOption, Output, OutputOption, SetOption, assignments, emit, table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from anychip.plan.plan import OpRow


def ops(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="The recipe's file.")],
    why: Annotated[
        str | None,
        typer.Option("--why", metavar="OP", help="Show each candidate kernel of one op, and why not that one."),
    ] = None,
    unfused: Annotated[bool, typer.Option("--unfused", help="The ops of the model before any fusion.")] = False,
    sets: SetOption = None,
    emulate: EmulateOption = False,
    output: OutputOption = Output.text,
) -> None:
    """Show which ops a model needs on a backend, how often, from whom, and which fall back."""
    from rich.console import Group

    from anychip.plan.explain import op_json, program_json, program_lines
    from anychip.plan.make import make_plan
    from anychip.plan.plan import EMULATED
    from anychip.recipe import load

    sets = [*(sets or ()), *(["fusion.policies=[]"] if unfused else [])]
    plan = make_plan(load(recipe, sets=assignments(sets, emulate=emulate)).recipe)
    rows = plan.ops if why is None else _rows_of(why, plan.ops)
    value = {
        "backend": plan.backend.name,
        "emulated": plan.backend.emulated,
        "ops": [op_json(row) for row in rows],
        "program": program_json(plan),
    }
    parts = ["\n".join(map(_explained, rows))] if why is not None else [_table(rows), *program_lines(plan)]
    emulated = [f"{plan.backend.name}, {EMULATED}"] if plan.backend.emulated else []
    emit(value, output, text=Group(*emulated, *parts))


def _rows_of(name: str, rows: tuple[OpRow, ...]) -> tuple[OpRow, ...]:
    from anychip_sdk.errors import UsageError
    from anychip_sdk.ops import CATALOGUE

    found = tuple(row for row in rows if row.op == name)
    if found:
        return found
    used = ", ".join(dict.fromkeys(row.op for row in rows))
    if name not in CATALOGUE:
        raise UsageError(f"there is no op '{name}' in the catalogue", hint=f"this model uses {used}")
    raise UsageError(
        f"this model does not run op '{name}' on this backend",
        hint=f"it runs {used}; --unfused shows the ops before fusion",
    )


def _table(rows: tuple[OpRow, ...]) -> RenderableType:
    from anychip_sdk.registry import dtype_name

    return table(
        ("op", "dtype", "count", "provider", "kernel", "why"),
        (
            (
                row.op,
                dtype_name(row.dtype),
                str(row.count),
                row.provider + (" (fallback)" if row.is_fallback else ""),
                row.kernel,
                row.reason,
            )
            for row in rows
        ),
    )


def _explained(row: OpRow) -> str:
    from anychip.plan.explain import op_line

    others = [f"  not {one.provider}/{one.kernel}: {one.reason}" for one in row.rejected]
    return "\n".join((op_line(row), *others))


def register(app: typer.Typer) -> None:
    app.command()(ops)


__all__ = ["ops", "register"]
