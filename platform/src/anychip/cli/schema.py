"""`platform schema`: the recipe's schema for editors and for people. Knows the two formats by name only."""

from __future__ import annotations

import json
from enum import Enum
from typing import Annotated

import typer

from anychip.cli.output import emit_raw


class Format(str, Enum):
    """What the schema is written as."""

    json_schema = "json-schema"
    markdown = "markdown"


def schema(
    form: Annotated[
        Format, typer.Option("--format", help="A JSON Schema for editors, or the reference page.")
    ] = Format.json_schema,
) -> None:
    """Print the schema of recipes."""
    from anychip.recipe.export import json_schema, markdown

    if form is Format.markdown:
        emit_raw(markdown())
    else:
        emit_raw(json.dumps(json_schema(), indent=2))


def register(app: typer.Typer) -> None:
    app.command()(schema)


__all__ = ["Format", "register", "schema"]
