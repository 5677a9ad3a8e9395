"""`platform models`: which models are served, and what one checkpoint would need. Knows how it is shown."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from anychip.cli.output import EmulateOption, Output, OutputOption, SetOption, assignments, emit, emit_raw, table
from anychip_sdk.errors import UsageError

if TYPE_CHECKING:
    from anychip.plan.families import Family
    from anychip.plan.survey import Survey


class Format(str, Enum):
    """What the list is written as."""

    table = "table"
    markdown = "markdown"


def models(
    checkpoint: Annotated[
        str | None,
        typer.Argument(
            metavar="[CHECKPOINT]", help="A folder or GGUF file, or package:, hf: or modelscope: as in recipes."
        ),
    ] = None,
    context: Annotated[
        int | None,
        typer.Option("--context", metavar="TOKENS", min=2, help="Of a request, prompt and output; the model's limit."),
    ] = None,
    backend: Annotated[
        str | None, typer.Option("--backend", metavar="NAME", help="Where it would be served: --set backend.name=NAME.")
    ] = None,
    emulate: EmulateOption = False,
    sets: SetOption = None,
    form: Annotated[
        Format, typer.Option("--format", help="The list of families as a table or as the page docs/models.md.")
    ] = Format.table,
    output: OutputOption = Output.text,
) -> None:
    """List the models that are served, or tell what a checkpoint is and what it needs. Exit code 4: it can't be served.

    Reads no weights.
    """
    if checkpoint is None:
        if context is not None or backend is not None or emulate or sets:
            raise UsageError("--context, --backend, --emulate and --set need a CHECKPOINT")
        _list(form, output)
        return
    if form is not Format.table:
        raise UsageError("--format is for the list of families", hint="leave out CHECKPOINT, or --format")
    from anychip.plan.explain_survey import survey_json
    from anychip.plan.survey import survey

    chosen = [] if backend is None else [f"backend.name={backend}"]
    found = survey(checkpoint, assignments([*chosen, *(sets or ())], emulate=emulate), context)
    emit(survey_json(found), output, text=_survey(found))
    if found.problems:
        raise typer.Exit(4)


def _list(form: Format, output: Output) -> None:
    from anychip.plan.families import families, markdown

    if form is Format.markdown:
        emit_raw(markdown())
        return
    found = families()
    emit({"families": [family._asdict() for family in found]}, output, text=_families(found))


def _families(found: tuple[Family, ...]) -> RenderableType:
    return table(
        ("FAMILY", "ARCHITECTURES", "KEEPS", "EXPERTS", "GGUF", "MODELS"),
        (
            (
                one.name,
                ", ".join(one.architectures),
                ", ".join(one.states),
                "yes" if one.experts else "-",
                one.gguf or "-",
                one.summary,
            )
            for one in found
        ),
    )


def _survey(found: Survey) -> RenderableType:
    from rich.console import Group

    from anychip.plan.explain_survey import NEEDS, head_lines, need_rows, recipe_text
    from anychip.plan.memory import gib

    parts: list[RenderableType] = ["\n".join(head_lines(found))]
    if found.problems:
        parts.append("\nin the way\n" + "\n".join(f"  {problem}" for problem in found.problems))
    if found.device is not None and found.needs:
        device, share = found.device, found.recipe.memory.static_fraction
        memory = f"{share:g} of {gib(device.memory_bytes_total)} for weights and states"
        parts.append(f"\non {device.name}, {device.product}: {memory}")
        headers = [header.format(f"{found.context} TOKENS") for header in NEEDS]
        parts.append(table(headers, need_rows(found)))
    if found.best is not None and not found.problems:
        parts.append(f"\na recipe to start with\n\n{recipe_text(found, found.best)}")
    return Group(*parts)


def register(app: typer.Typer) -> None:
    app.command()(models)


__all__ = ["Format", "models", "register"]
