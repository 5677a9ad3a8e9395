"""The gated MLPs of a mixture with integer weights, each row and each gated product rounded on its way in.

Knows how `anychip_sdk.ops.quantized` holds a matrix; an expert's matrices are held like that, one after the other.
"""

from __future__ import annotations

from typing import Any

from torch.nn import functional

from anychip_sdk.ops.base import Arg, accumulated, accurate, op
from anychip_sdk.ops.cases import Args
from anychip_sdk.ops.checks import Checks
from anychip_sdk.ops.expert_levels import (
    Mixture,
    bias_of,
    int4_case,
    int4_mixture,
    int4_terms,
    int8_case,
    int8_mixture,
    int8_terms,
    result,
)
from anychip_sdk.ops.expert_parts import (
    ACTIVATION,
    DOWN_BIAS,
    FIRST,
    GATE_UP_BIAS,
    IDS,
    ON_INPUT,
    OUT,
    ROWS,
    WEIGHTS,
    Tensor,
    gated,
    mixed,
    plant_in_routed,
)
from anychip_sdk.ops.quantized import BLOCK, ROUNDING, rounded

INT4_DOC = "as linear_int4's"


@op(
    ROWS,
    IDS,
    WEIGHTS,
    Arg("gate_up_weight", ("experts", "2 * inner", "hidden"), "int8", weight=True, doc="gate rows, then up rows"),
    Arg("gate_up_scale", ("experts", "2 * inner", "hidden_groups"), "float32", weight=True),
    GATE_UP_BIAS,
    Arg("down_weight", ("experts", "hidden", "inner"), "int8", weight=True),
    Arg("down_scale", ("experts", "hidden", "inner_groups"), "float32", weight=True),
    DOWN_BIAS,
    ACTIVATION,
    ON_INPUT,
    FIRST,
    ROUNDING,
    returns=OUT,
    error=accumulated("hidden"),
    checks=Checks(int8_case, plant_in_routed, int8_terms),
)
def moe_experts_int8(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    gate_up_weight: Tensor,
    gate_up_scale: Tensor,
    gate_up_bias: Tensor | None,
    down_weight: Tensor,
    down_scale: Tensor,
    down_bias: Tensor | None,
    activation: str,
    on_input: bool,
    first: int,
    block: int = BLOCK,
) -> Tensor:
    """`moe_experts` with 8-bit weights: rows and gated products are rounded as `linear_int8` rounds activations.

    The gated products are not rounded to the dtype before.
    """
    args = (x, ids, weights, gate_up_weight, gate_up_scale, gate_up_bias, down_weight, down_scale, down_bias)
    return result(x, ids, weights, int8_mixture((*args, activation, on_input, first, block)), on_input, first)


@op(
    ROWS,
    IDS,
    WEIGHTS,
    Arg("gate_up_weight", ("experts", "2 * inner", "hidden / 2"), "uint8", weight=True, doc=INT4_DOC),
    Arg("gate_up_scale", ("experts", "2 * inner", "hidden_groups"), "float16", weight=True),
    Arg("gate_up_minimum", ("experts", "2 * inner", "hidden_groups"), "float16", optional=True, weight=True),
    GATE_UP_BIAS,
    Arg("down_weight", ("experts", "hidden", "inner / 2"), "uint8", weight=True, doc=INT4_DOC),
    Arg("down_scale", ("experts", "hidden", "inner_groups"), "float16", weight=True),
    Arg("down_minimum", ("experts", "hidden", "inner_groups"), "float16", optional=True, weight=True),
    DOWN_BIAS,
    ACTIVATION,
    ON_INPUT,
    FIRST,
    returns=OUT,
    error=accumulated("hidden"),
    checks=Checks(int4_case, plant_in_routed, int4_terms),
)
def moe_experts_int4(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    gate_up_weight: Tensor,
    gate_up_scale: Tensor,
    gate_up_minimum: Tensor | None,
    gate_up_bias: Tensor | None,
    down_weight: Tensor,
    down_scale: Tensor,
    down_minimum: Tensor | None,
    down_bias: Tensor | None,
    activation: str,
    on_input: bool,
    first: int,
) -> Tensor:
    """`moe_experts` with 4-bit weights: rows and gated products are rounded in blocks of 32 as `linear_int4` does it.

    The gated products are not rounded to the dtype before. `hidden` and `inner` are 32 times any.
    """
    gate_up = (gate_up_weight, gate_up_scale, gate_up_minimum, gate_up_bias)
    down = (down_weight, down_scale, down_minimum, down_bias)
    mixture = int4_mixture((x, ids, weights, *gate_up, *down, activation, on_input, first))
    return result(x, ids, weights, mixture, on_input, first)


@moe_experts_int8.mistake
def _gated_products_stay(*args: Any) -> Tensor:
    """Only the rows are rounded, the gated products are not."""
    return _without_the_second_rounding(args[:3], int8_mixture(args), *args[10:12])


@moe_experts_int8.mistake
def _scales_are_the_first_experts(*args: Any) -> Tensor:
    """All experts have the first one's scales."""
    out: Tensor = moe_experts_int8.reference(*args[:4], args[4][:1].expand_as(args[4]), *args[5:])
    return out


@moe_experts_int4.mistake
def _int4_gated_products_stay(*args: Any) -> Tensor:
    """Only the rows are rounded, the gated products are not."""
    return _without_the_second_rounding(args[:3], int4_mixture(args), *args[12:14])


@moe_experts_int4.mistake
def _halves_are_swapped(*args: Any) -> Tensor:
    """The lower half of a byte is taken for the upper one."""
    swapped = args[3] >> 4 | args[3] << 4
    out: Tensor = moe_experts_int4.reference(*args[:3], swapped, *args[4:])
    return out


def _without_the_second_rounding(rows: Args, mixture: Mixture, on_input: bool, first: int) -> Tensor:
    x, ids, weights = rows
    exact = accurate(x.dtype)

    def mlp(expert: int, taken: Tensor) -> Tensor:
        levels, scale = rounded(taken, mixture.block)
        bias = bias_of(mixture.gate_up_bias, expert, exact)
        both = functional.linear(levels * scale, mixture.gate_up[expert].to(exact), bias)
        inner = gated(both, mixture.activation)
        return functional.linear(inner, mixture.down[expert].to(exact), bias_of(mixture.down_bias, expert, exact))

    experts = mixture.down.shape[0]
    return mixed(x.to(exact), ids, weights, experts, mlp, on_input=on_input, first=first).to(x.dtype)


__all__ = ["moe_experts_int4", "moe_experts_int8"]
