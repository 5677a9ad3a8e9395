"""The gated MLPs of a mixture, each row through those that it was sent to. Knows ids and weights; knows no router."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from anychip_sdk.ops.base import Arg, accumulated, accurate, op
from anychip_sdk.ops.cases import Args, Case
from anychip_sdk.ops.checks import Checks, Terms
from anychip_sdk.ops.expert_parts import (
    ACTIVATION,
    DOWN_BIAS,
    FIRST,
    GATE_UP_BIAS,
    IDS,
    ON_INPUT,
    OUT,
    ROWS,
    SLOPE,
    WEIGHTS,
    Tensor,
    biases,
    inner_sizes,
    mixed,
    plain_arguments,
    plain_mlp,
    plant_in_routed,
    random_ids,
)


def _experts_case(case: Case) -> Args:
    experts, hidden, inner = case["experts"], case["hidden"], case["inner"]
    activation, on_input, first, scale = plain_arguments(case)
    x = case.floats(case["tokens"], hidden, scale=scale)
    gate_up = case.floats(experts, 2 * inner, hidden, scale=hidden**-0.5)
    down = case.floats(experts, hidden, inner, scale=inner**-0.5)
    gate_up_bias, down_bias = biases(case, experts)
    ids, weights = random_ids(case, experts, first)
    return x, ids, weights, gate_up, gate_up_bias, down, down_bias, activation, on_input, first


def _experts_terms(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    gate_up: Tensor,
    gate_up_bias: Tensor | None,
    down: Tensor,
    down_bias: Tensor | None,
    activation: str,
    on_input: bool,
    first: int,
) -> list[Terms]:
    """What the gate and up products are off goes through the activation and the second product."""

    def summed(expert: int, rows: Tensor) -> Tensor:
        bias = None if gate_up_bias is None else gate_up_bias[expert]
        inner, off = inner_sizes(rows, gate_up[expert], bias, activation)
        least = None if down_bias is None else down_bias[expert].abs()
        return functional.linear(off + inner * (1 + inner.shape[-1] ** 0.5), down[expert].abs(), least)

    def rounded(expert: int, rows: Tensor) -> Tensor:
        bias = None if gate_up_bias is None else gate_up_bias[expert]
        return functional.linear(inner_sizes(rows, gate_up[expert], bias, activation)[0], down[expert].abs())

    sums, roundings = (
        mixed(x, ids, weights.abs(), gate_up.shape[0], sizes, on_input=on_input, first=first)
        for sizes in (summed, rounded)
    )
    return [Terms(sums * (1 + ids.shape[1]), roundings)]


@op(
    ROWS,
    IDS,
    WEIGHTS,
    Arg("gate_up_weight", ("experts", "2 * inner", "hidden"), weight=True, doc="gate rows, then up rows"),
    GATE_UP_BIAS,
    Arg("down_weight", ("experts", "hidden", "inner"), weight=True),
    DOWN_BIAS,
    ACTIVATION,
    ON_INPUT,
    FIRST,
    returns=OUT,
    error=accumulated("hidden"),
    checks=Checks(_experts_case, plant_in_routed, _experts_terms),
)
def moe_experts(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    gate_up_weight: Tensor,
    gate_up_bias: Tensor | None,
    down_weight: Tensor,
    down_bias: Tensor | None,
    activation: str,
    on_input: bool,
    first: int,
) -> Tensor:
    """The sum over columns of weight * (down(act(gate) * up) + down_bias), by the expert that the column names.

    It is summed in the columns' order in float32 at least and rounded once, so that a row's result doesn't depend on
    its batch mates; act(gate) * up is rounded to the dtype. Ids outside first .. first + experts - 1 are legal and add
    exactly nothing, whatever their weight. Experts without a row, and no rows at all, are legal.
    """
    exact = accurate(x.dtype)
    mlp = plain_mlp(gate_up_weight, gate_up_bias, down_weight, down_bias, activation, exact)
    experts = gate_up_weight.shape[0]
    return mixed(x.to(exact), ids, weights, experts, mlp, on_input=on_input, first=first).to(x.dtype)


def _experts_with(args: Args, **values: Any) -> Tensor:
    names = [arg.name for arg in moe_experts.args]
    given = dict(zip(names, args, strict=True))
    out: Tensor = moe_experts.reference(*{**given, **values}.values())
    return out


@moe_experts.mistake
def _columns_are_mixed_up(*args: Any) -> Tensor:
    """Each expert's result gets the next column's weight."""
    return _experts_with(args, weights=args[2].roll(1, dims=1))


@moe_experts.mistake
def _appended_column_is_dropped(*args: Any) -> Tensor:
    """The last column is taken for padding."""
    return _experts_with(args, ids=args[1][:, :-1], weights=args[2][:, :-1])


@moe_experts.mistake
def _local_range_is_ignored(*args: Any) -> Tensor:
    """Ids are clamped into the local range, so that experts elsewhere are computed by local ones."""
    experts, first = args[3].shape[0], args[9]
    return _experts_with(args, ids=args[1].clamp(first, first + experts - 1))


@moe_experts.mistake
def _first_is_taken_for_zero(*args: Any) -> Tensor:
    """Local experts are counted from id 0."""
    return _experts_with(args, first=0)


@moe_experts.mistake
def _up_comes_first(*args: Any) -> Tensor:
    """The joined weight is read as up rows, then gate rows."""
    inner = args[3].shape[1] // 2
    bias = None if args[4] is None else args[4].roll(inner, 1)
    return _experts_with(args, gate_up_weight=args[3].roll(inner, 1), gate_up_bias=bias)


@moe_experts.mistake
def _rows_alternate(*args: Any) -> Tensor:
    """The joined weight is read as gate and up rows in turn."""
    order = torch.arange(args[3].shape[1]).view(-1, 2).T.flatten()
    bias = None if args[4] is None else args[4][:, order]
    return _experts_with(args, gate_up_weight=args[3][:, order], gate_up_bias=bias)


@moe_experts.mistake
def _down_bias_is_not_weighted(*args: Any) -> Tensor:
    """The down bias is added once for each column, whatever the weight."""
    if args[6] is None:
        return _experts_with(args)
    local = args[1].long() - args[9]
    is_local = (local >= 0) & (local < args[3].shape[0])
    added: Tensor = args[6].float()[local.clamp(0, args[3].shape[0] - 1)] * is_local.unsqueeze(-1)
    return (_experts_with(args, down_bias=None).float() + added.sum(dim=1)).to(args[0].dtype)


@moe_experts.mistake
def _clamp_is_missing(*args: Any) -> Tensor:
    """swiglu_clamped without its clamp."""
    if args[7] != "swiglu_clamped":
        return _experts_with(args)
    exact = torch.float32
    x, ids, weights, gate_up, gate_up_bias, down, down_bias = args[:7]

    def mlp(expert: int, rows: Tensor) -> Tensor:
        bias = None if gate_up_bias is None else gate_up_bias[expert].to(exact)
        gate, up = functional.linear(rows, gate_up[expert].to(exact), bias).chunk(2, dim=-1)
        inner = (up + 1) * gate * torch.sigmoid(SLOPE * gate)
        bias = None if down_bias is None else down_bias[expert].to(exact)
        return functional.linear(inner, down[expert].to(exact), bias)

    out = mixed(x.to(exact), ids, weights, gate_up.shape[0], mlp, on_input=args[8], first=args[9])
    return out.to(x.dtype)


@moe_experts.mistake
def _weights_go_to_the_other_side(*args: Any) -> Tensor:
    """Weights meant for the rows that go in multiply those that come out, and the other way round."""
    return _experts_with(args, on_input=not args[8])


__all__ = ["moe_experts"]
