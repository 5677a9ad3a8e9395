"""Which call of a program makes the first number that is not finite. Knows programs and steps; knows no request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from anychip_sdk.ops import CATALOGUE
from anychip_sdk.program import Call, Constant, Program, Value, interpret
from anychip_sdk.step import Step, StepLimits


class Origin(NamedTuple):
    """Where a forward stops being finite."""

    call: str  #: the op and its result, e.g. "linear making layers_0_self_attn_q_proj"
    weights: tuple[str, ...]  #: that it reads; the names of those that are not finite themselves where there are some
    is_weight: bool  #: some of these are not finite themselves

    def __str__(self) -> str:
        names = ", ".join(self.weights) or "no weight"
        reads = f"; its weight {names} holds such numbers" if self.is_weight else f", which reads {names}"
        return f"the first op with a result that is not finite is {self.call}{reads}"


def first_non_finite(program: Program, values: Mapping[str, Any], limits: StepLimits, step: Step) -> Origin | None:
    """Run the program call by call, with the kernels that it is bound to; None where all results are finite.

    Args:
        values: constants by key.
        limits: the most of a step.
        step: is run once; it writes the states that it wrote before.
    """
    known: dict[str, Any] = {}
    for number, call in enumerate(program.calls):
        piece = program.piece(number, number + 1)
        made = interpret(piece, values, limits)(step, *(known[name] for name in piece.inputs))
        known.update(zip(piece.outputs, made, strict=True))
        if any(_is_strange(one) for one in made):
            return _origin(call, values)
    return None


def _origin(call: Call, values: Mapping[str, Any]) -> Origin:
    takes = () if call.is_view else CATALOGUE[call.op].args
    keys = [one.key for arg, one in zip(takes, call.args, strict=False) if isinstance(one, Constant) and not arg.state]
    strange = [key for key in keys if _is_strange(values.get(key))]
    read = [one.name for one in call.args if isinstance(one, Value)]
    what = f"{call.op} making {', '.join(call.makes) or 'nothing'} of {', '.join(read) or 'the step'}"
    return Origin(what, tuple(_plain(key) for key in strange or keys), bool(strange))


def _plain(key: str) -> str:
    """A weight's name without the op that its layout is for."""
    return key.partition("@")[0]


def _is_strange(value: Any) -> bool:
    """Whether a tensor of numbers holds NaN or an infinity; layouts that only a kernel can read are not looked into."""
    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.layout is not torch.strided:
        return False
    return not bool(value.isfinite().all())


__all__ = ["Origin", "first_non_finite"]
