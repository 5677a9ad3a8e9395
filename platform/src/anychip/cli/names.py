"""How a verb is told which service it means. Knows no service."""

from __future__ import annotations

from typing import Annotated

import typer

NameArgument = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="The service. Not given: the only one that there is.")
]

__all__ = ["NameArgument"]
