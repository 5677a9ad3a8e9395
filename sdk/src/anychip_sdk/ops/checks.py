"""What an op says of how its kernels are checked: arguments, error terms, special values. Knows no op and no kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from anychip_sdk.ops.cases import Args, Case

#: writes special values into an op's arguments; the number is the largest of the op's dtype
Planter = Callable[[list[Any], float], None]


class Terms(NamedTuple):
    """The sizes of what an element is made of."""

    sums: torch.Tensor  #: times u * the op's factor: summed in the accumulator
    rounded: torch.Tensor | None = None  #: times the dtype's epsilon: rounded to the dtype on the way
    stepped: torch.Tensor | None = None  #: as it is: activations near a tie may have been rounded to the other side


#: the terms of each result, from the op's arguments in float64
TermsOf = Callable[..., Sequence[Terms | None]]


@dataclass(frozen=True)
class Checks:
    """How kernels of an op are checked.

    Attributes:
        case: random valid arguments, in the schema's order.
        special: plants not a number, infinity and the like; None: the reference says nothing of them.
        terms: what each element is summed from, for the error models that count sums; None: the whole result's size.
    """

    case: Callable[[Case], Args]
    special: Planter | None
    terms: TermsOf | None = None


def plant_in_first_rows(args: list[Any], largest: float) -> None:
    """Not a number in the first row, infinity in the second: a row's result depends on that row alone."""
    args[0][0, 1] = torch.nan
    args[0][1, 0] = torch.inf


def plant_not_a_number(args: list[Any], largest: float) -> None:
    """One, in the first row."""
    args[0][0, ..., 1] = torch.nan


def plant_in_moved(args: list[Any], largest: float) -> None:
    """All kinds of numbers, in an op that only moves them."""
    for value in args:
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            row = torch.tensor((torch.nan, torch.inf, -torch.inf, -0.0, largest), dtype=torch.float64)
            value[0, ..., :5] = row.to(value.dtype)


__all__ = [
    "Checks",
    "Planter",
    "Terms",
    "TermsOf",
    "plant_in_first_rows",
    "plant_in_moved",
    "plant_not_a_number",
]
