"""A mixture's experts as integers: its numbers, random cases, sizes of errors. Knows schemes of levels; knows no op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from anychip_sdk.ops.base import accurate
from anychip_sdk.ops.cases import Args, Case
from anychip_sdk.ops.checks import Terms
from anychip_sdk.ops.expert_parts import (
    Product,
    Tensor,
    biases,
    gated,
    inner_sizes,
    mixed,
    moved_by,
    plain_arguments,
    random_ids,
)
from anychip_sdk.ops.quantized import BLOCK, PACKED, dequantized_int4, dequantized_int8, rounded

F32_EPS = torch.finfo(torch.float32).eps


class Mixture(NamedTuple):
    """All experts' matrices as numbers, and how rows go through them."""

    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None
    activation: str
    block: int = BLOCK

    def mlp(self, exact: torch.dtype) -> Product:
        def through(expert: int, rows: Tensor) -> Tensor:
            levels, scale = rounded(rows, self.block)
            both = functional.linear(
                levels * scale, self.gate_up[expert].to(exact), bias_of(self.gate_up_bias, expert, exact)
            )
            levels, scale = rounded(gated(both, self.activation), self.block)
            return functional.linear(
                levels * scale, self.down[expert].to(exact), bias_of(self.down_bias, expert, exact)
            )

        return through


def bias_of(stack: Tensor | None, expert: int, exact: torch.dtype) -> Tensor | None:
    return None if stack is None else stack[expert].to(exact)


def result(x: Tensor, ids: Tensor, weights: Tensor, mixture: Mixture, on_input: bool, first: int) -> Tensor:
    exact = accurate(x.dtype)
    experts = mixture.down.shape[0]
    return mixed(x.to(exact), ids, weights, experts, mixture.mlp(exact), on_input=on_input, first=first).to(x.dtype)


def _terms(rows: Args, mixture: Mixture, on_input: bool, first: int) -> list[Terms]:
    """Whole numbers sum without error; what is so near a tie that float32 can't tell may be a step off."""
    x, ids, weights = rows

    def over(sizes: Callable[[Tensor, int], Tensor]) -> Tensor:
        def mlp(expert: int, rows: Tensor) -> Tensor:
            return sizes(rows, expert)

        return mixed(x, ids, weights.abs(), mixture.down.shape[0], mlp, on_input=on_input, first=first)

    def summed(rows: Tensor, expert: int) -> Tensor:
        inner, off, _ = _inner(mixture, rows, expert)
        bias = bias_of(mixture.down_bias, expert, rows.dtype)
        total = off + inner * (1 + inner.shape[-1] ** 0.5)
        return functional.linear(total, mixture.down[expert].abs(), None if bias is None else bias.abs())

    def stepped(rows: Tensor, expert: int) -> Tensor:
        return functional.linear(_inner(mixture, rows, expert)[2], mixture.down[expert].abs())

    return [Terms(over(summed) * (1 + ids.shape[1]), stepped=over(stepped))]


def _inner(mixture: Mixture, rows: Tensor, expert: int) -> tuple[Tensor, Tensor, Tensor]:
    """The gated products' sizes, the sums that they may be off by, and how far their roundings may be off."""
    gate_up, activation = mixture.gate_up[expert], mixture.activation
    bias = bias_of(mixture.gate_up_bias, expert, rows.dtype)
    levels, scale = rounded(rows, mixture.block)
    steps = _steps(rows, scale, torch.zeros_like(rows))
    inner, off = inner_sizes(levels * scale, gate_up, bias, activation)
    _, moved = moved_by(levels * scale, gate_up, bias, activation, functional.linear(steps, gate_up.abs()))
    _, scale = rounded(inner, mixture.block)
    return inner, off, _steps(inner, scale, moved + 4 * F32_EPS * off)


def _steps(values: Tensor, scale: Tensor, off: Tensor) -> Tensor:
    """How far rounded values may be off where the values are: by steps near a tie, and as far as the scale moves."""
    ratio = torch.where(scale == 0, 0.0, values / scale).abs()
    # a scale is its block's largest value: nothing of a row moves it by more than the row's largest step
    share = torch.where(scale == 0, 0.0, off.amax(dim=-1, keepdim=True) / (127 * scale))
    reach = 4 * F32_EPS * ratio + torch.where(scale == 0, 0.0, off / scale) + ratio * share
    steps = torch.where((ratio % 1 - 0.5).abs() <= reach, (1 + reach.floor()) * scale, 0.0)
    return steps + ratio * share * scale


def _int8_stack(case: Case, experts: int, rows: int, columns: int) -> tuple[Tensor, Tensor]:
    groups = columns // PACKED if columns % PACKED == 0 and case.integers(1, below=2) else 1
    levels = (case.integers(experts, rows, columns, below=255) - 127).to(torch.int8)
    return levels, case.scales(experts * rows, groups, columns, 127, torch.float32).view(experts, rows, groups)


def _int4_stack(case: Case, experts: int, rows: int, columns: int) -> tuple[Tensor, Tensor, Tensor | None]:
    groups = columns // (4 * PACKED) if columns % (4 * PACKED) == 0 and case.integers(1, below=2) else columns // PACKED
    scale = case.scales(experts * rows, groups, columns, 8, torch.float16).view(experts, rows, groups)
    minimum = -8 * scale * case.uniform(*scale.shape, low=0.5, high=1.5, dtype=torch.float16) if case.bias else None
    return case.integers(experts, rows, columns // 2, below=256).to(torch.uint8), scale, minimum


def int8_case(case: Case) -> Args:
    experts, hidden, inner = case["experts"], case["hidden"], case["inner"]
    activation, on_input, first, scale = plain_arguments(case)
    x, (ids, weights) = case.floats(case["tokens"], hidden, scale=scale), random_ids(case, experts, first)
    gate_up, down = _int8_stack(case, experts, 2 * inner, hidden), _int8_stack(case, experts, hidden, inner)
    gate_up_bias, down_bias = biases(case, experts)
    plain = (activation, on_input, first, case["block"])
    return x, ids, weights, *gate_up, gate_up_bias, *down, down_bias, *plain


def int4_case(case: Case) -> Args:
    """`hidden` and `inner` rounded up to whole packs of values; minima where optional vectors are given."""
    hidden, inner = (-(-case[name] // PACKED) * PACKED for name in ("hidden", "inner"))
    experts = case["experts"]
    activation, on_input, first, scale = plain_arguments(case)
    x, (ids, weights) = case.floats(case["tokens"], hidden, scale=scale), random_ids(case, experts, first)
    gate_up, down = _int4_stack(case, experts, 2 * inner, hidden), _int4_stack(case, experts, hidden, inner)
    gate_up_bias, down_bias = None, None
    if case.bias:
        gate_up_bias, down_bias = case.floats(experts, 2 * inner, scale=0.3), case.floats(experts, hidden, scale=0.3)
    return x, ids, weights, *gate_up, gate_up_bias, *down, down_bias, activation, on_input, first


def int8_mixture(args: Args) -> Mixture:
    _, _, _, gate_up, gate_up_scale, gate_up_bias, down, down_scale, down_bias, activation, *_, block = args
    exact = accurate(args[0].dtype)
    return Mixture(
        dequantized_int8(gate_up, gate_up_scale.to(exact)),
        gate_up_bias,
        dequantized_int8(down, down_scale.to(exact)),
        down_bias,
        activation,
        block,
    )


def int4_mixture(args: Args) -> Mixture:
    gate_up, gate_up_scale, gate_up_minimum, gate_up_bias, down, down_scale, down_minimum, down_bias = args[3:11]
    exact = accurate(args[0].dtype)

    def wide(stack: Tensor, scale: Tensor, minimum: Tensor | None) -> Tensor:
        return dequantized_int4(stack, scale.to(exact), None if minimum is None else minimum.to(exact))

    return Mixture(
        wide(gate_up, gate_up_scale, gate_up_minimum), gate_up_bias,
        wide(down, down_scale, down_minimum), down_bias, args[11],
    )  # fmt: skip


def int8_terms(*args: Any) -> list[Terms]:
    return _terms(args[:3], int8_mixture(args), args[10], args[11])


def int4_terms(*args: Any) -> list[Terms]:
    """A level's product and the minimum's may cancel, so that the sums are of both."""
    [terms] = _terms(args[:3], int4_mixture(args), args[12], args[13])
    sizes = list(args)
    for at in (4, 5, 8, 9):
        sizes[at] = None if args[at] is None else args[at].abs()
    if args[5] is None and args[9] is None:
        return [terms]
    [wider] = _terms(args[:3], int4_mixture(tuple(sizes)), args[12], args[13])
    return [terms._replace(sums=terms.sums + wider.sums)]


__all__ = [
    "Mixture",
    "bias_of",
    "int4_case",
    "int4_mixture",
    "int4_terms",
    "int8_case",
    "int8_mixture",
    "int8_terms",
    "result",
]
