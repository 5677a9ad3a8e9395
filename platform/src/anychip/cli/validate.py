"""`platform validate`: check recipes. Knows how problems are shown, not what they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from anychip.cli.output import Output, OutputOption, SetOption, emit, fail
from anychip_sdk.errors import RecipeInvalid

if TYPE_CHECKING:
    from anychip.recipe.schema import ServerSection


def validate(
    recipes: Annotated[list[str], typer.Argument(metavar="RECIPE...", help="The files to check.")],
    sets: SetOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Check recipes and report everything that is wrong with them. Exit code 3 if anything is."""
    from anychip.recipe import load
    from anychip.recipe.notes import notes_on

    results: list[dict[str, object]] = []
    problems: list[str] = []
    remarks: list[str] = []
    for path in recipes:
        found: tuple[str, ...] = ()
        notes: tuple[str, ...] = ()
        try:
            loaded = load(path, sets=tuple(sets or ()))
            notes = (*notes_on(loaded), *_missing(loaded.recipe.server))
        except RecipeInvalid as error:
            found = error.problems
        results.append({"path": path, "valid": not found, "problems": list(found), "notes": list(notes)})
        problems += [problem for problem in found if problem not in problems]
        remarks += [note for note in notes if note not in remarks]
    if output is Output.text:
        for note in remarks:
            fail(f"note: {note}")
        for problem in problems:
            fail(problem)
    invalid = sum(not result["valid"] for result in results)
    counts = f"{len(problems)} problem{'s' * (len(problems) != 1)} in {invalid} of {len(results)} recipes"
    emit({"recipes": results}, output, text=counts if problems else f"{len(results)} valid")
    if problems:
        raise typer.Exit(3)


def _missing(server: ServerSection) -> tuple[str, ...]:
    """What isn't there on this machine; another one may have it."""
    if server.api_key is None and server.tls is None:
        return ()
    from anychip.deploy.network import missing

    return missing(server)


def register(app: typer.Typer) -> None:
    app.command()(validate)


__all__ = ["register", "validate"]
