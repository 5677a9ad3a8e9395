"""What ops on the experts of a mixture share: arguments, the sum over columns, sizes of errors. Knows no op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from anychip_sdk.ops.base import Arg
from anychip_sdk.ops.cases import Case

#: swiglu_clamped's limit and slope (gpt-oss)
LIMIT, SLOPE = 7.0, 1.702
ACTIVATIONS = ("silu", "gelu", "swiglu_clamped")
GAIN = 1.2  #: the steepest that an activation is, a little more than it is

Tensor = torch.Tensor
#: expert and rows in, rows out
Product = Callable[[int, Tensor], Tensor]

ROWS = Arg("x", ("tokens", "hidden"))
IDS = Arg("ids", ("tokens", "columns"), "int32", doc="an expert that is not among the local ones adds nothing")
WEIGHTS = Arg("weights", ("tokens", "columns"), "float32")
GATE_UP_BIAS = Arg("gate_up_bias", ("experts", "2 * inner"), optional=True, weight=True)
DOWN_BIAS = Arg("down_bias", ("experts", "hidden"), optional=True, weight=True)
ACTIVATION = Arg("activation", dtype="str", choices=ACTIVATIONS)
ON_INPUT = Arg("on_input", dtype="bool", doc="the weights multiply the rows that go in, not those that come out")
FIRST = Arg("first", dtype="int", doc="the id of the first local expert")
OUT = Arg("out", ("tokens", "hidden"))


def gated(both: Tensor, activation: str) -> Tensor:
    """act(gate) * up of [..., gate | up]."""
    gate, up = both.chunk(2, dim=-1)
    if activation == "silu":
        return functional.silu(gate) * up
    if activation == "gelu":
        return functional.gelu(gate, approximate="tanh") * up
    gate, up = gate.clamp(max=LIMIT), up.clamp(min=-LIMIT, max=LIMIT)
    return (up + 1) * gate * torch.sigmoid(SLOPE * gate)


def mixed(x: Tensor, ids: Tensor, weights: Tensor, experts: int, mlp: Product, *, on_input: bool, first: int) -> Tensor:
    """The weighted sum of the experts' results in the columns' order, [tokens, hidden] in the dtype of x.

    Args:
        x: [tokens, hidden], in the dtype that is computed in.
        ids: [tokens, columns].
        weights: [tokens, columns].
        experts: how many are local.
        mlp: one expert's whole MLP.
        on_input: the weights multiply what goes in.
        first: the id of the first local expert.
    """
    columns = ids.shape[1]
    parts = x.new_zeros((x.shape[0], columns, x.shape[1]))
    for expert in range(experts):
        rows, column = torch.nonzero(ids == first + expert, as_tuple=True)
        if len(rows):
            weight = weights[rows, column].to(x.dtype).unsqueeze(1)
            taken = x[rows] * weight if on_input else x[rows]
            result = mlp(expert, taken)
            parts[rows, column] = result if on_input else result * weight
    out = torch.zeros_like(x)
    for column_parts in parts.unbind(1):
        out = out + column_parts
    return out


def plain_mlp(
    gate_up: Tensor, gate_up_bias: Tensor | None, down: Tensor, down_bias: Tensor | None, activation: str, exact: Any
) -> Product:
    """An expert's MLP with its gated product rounded to the dtype of its weights."""

    def of(stack: Tensor | None, expert: int) -> Tensor | None:
        return None if stack is None else stack[expert].to(exact)

    def mlp(expert: int, rows: Tensor) -> Tensor:
        both = functional.linear(rows, gate_up[expert].to(exact), of(gate_up_bias, expert))
        inner = gated(both, activation).to(down.dtype).to(exact)
        return functional.linear(inner, down[expert].to(exact), of(down_bias, expert))

    return mlp


def random_ids(case: Case, experts: int, first: int) -> tuple[Tensor, Tensor]:
    """Distinct experts of each token, some of them not local, and weights that tell columns apart."""
    total = experts + 2 * first
    tokens, columns = case["tokens"], min(case["columns"], total)
    drawn = [case.distinct(columns, total) for _ in range(tokens)]
    ids = torch.stack(drawn).to(torch.int32) if drawn else torch.zeros(0, columns, dtype=torch.int32)
    ids = ids.masked_fill(ids == 0, -1) if first else ids  # no expert's
    return ids, case.uniform(tokens, columns, low=0.1, high=1.0, dtype=torch.float32)


def plain_arguments(case: Case) -> tuple[str, bool, int, float]:
    """Activation, on_input and first of a case, and how large its rows are: beyond the clamp where there is one."""
    activation = ACTIVATIONS[int(case.integers(1, below=len(ACTIVATIONS)))]
    on_input, first = not case.integers(1, below=4), 3 * int(case.integers(1, below=2))
    return activation, on_input, first, 6.0 if activation == "swiglu_clamped" else 1.0


def biases(case: Case, experts: int) -> tuple[Tensor | None, Tensor | None]:
    if not case.bias:
        return None, None
    return case.floats(experts, 2 * case["inner"], scale=0.3), case.floats(experts, case["hidden"], scale=0.3)


def inner_sizes(rows: Tensor, gate_up: Tensor, bias: Tensor | None, activation: str) -> tuple[Tensor, Tensor]:
    """The gated products' sizes, and those of the sums that they may be off by."""
    terms = functional.linear(rows.abs(), gate_up.abs(), None if bias is None else bias.abs())
    inner, off = moved_by(rows, gate_up, bias, activation, terms * max(1, rows.shape[-1]) ** 0.5)
    return inner, off + 4 * inner


def moved_by(rows: Tensor, gate_up: Tensor, bias: Tensor | None, activation: str, off: Tensor) -> tuple[Tensor, Tensor]:
    """The gated products' sizes, and how far they move where gate and up are off by so much."""
    both = functional.linear(rows, gate_up, bias)
    gate, up = both.abs().chunk(2, dim=-1)
    gate_off, up_off = off.chunk(2, dim=-1)
    if activation == "swiglu_clamped":
        gate, up = gate.clamp(max=LIMIT), up.clamp(max=LIMIT) + 1
    return gated(both, activation).abs(), GAIN * up * gate_off + gate * up_off


def plant_in_routed(args: list[Any], largest: float) -> None:
    """Not a number in a row, and in another one's weight: no other row may see either."""
    args[0][0, 1] = torch.nan
    args[2][1, 0] = torch.nan


__all__ = [
    "ACTIVATION",
    "ACTIVATIONS",
    "DOWN_BIAS",
    "FIRST",
    "GATE_UP_BIAS",
    "IDS",
    "LIMIT",
    "ON_INPUT",
    "OUT",
    "ROWS",
    "SLOPE",
    "WEIGHTS",
    "Product",
    "Tensor",
    "biases",
    "gated",
    "inner_sizes",
    "mixed",
    "moved_by",
    "plain_arguments",
    "plain_mlp",
    "plant_in_routed",
    "random_ids",
]
