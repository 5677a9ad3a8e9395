"""Whole blocks of a decoder layer as one op, for backends that fuse that far. Knows only what its parts know."""

from __future__ import annotations

import torch

from anychip_sdk.ops.attention import GROUP, K_CACHE, STEP_ARG, V_CACHE, paged_attention
from anychip_sdk.ops.base import Arg, accumulated, op
from anychip_sdk.ops.cases import EPS, Args, Case
from anychip_sdk.ops.checks import Checks, plant_not_a_number
from anychip_sdk.ops.elementwise import silu_mul
from anychip_sdk.ops.kv import K_WRITTEN, V_WRITTEN, kv_write
from anychip_sdk.ops.linear import linear
from anychip_sdk.ops.norm import rms_norm
from anychip_sdk.ops.rope import rope
from anychip_sdk.step import Step


def _ffn_case(case: Case) -> Args:
    gate_up, down = (2 * case["inner"], case["hidden"]), (case["hidden"], case["inner"])
    x = case.floats(case["tokens"], case["hidden"])
    return x, case.weight(*gate_up), case.vector(gate_up[0]), case.weight(*down), case.vector(down[0])


@op(
    Arg("x", ("tokens", "hidden")),
    Arg("gate_up_weight", ("2 * inner", "hidden"), weight=True, doc="gate rows, then up rows"),
    Arg("gate_up_bias", ("2 * inner",), optional=True, weight=True),
    Arg("down_weight", ("hidden", "inner"), weight=True),
    Arg("down_bias", ("hidden",), optional=True, weight=True),
    returns=Arg("out", ("tokens", "hidden")),
    error=accumulated("inner", 16.0),
    composed_of=("linear", "silu_mul"),
    checks=Checks(_ffn_case, plant_not_a_number),
)
def ffn(
    x: torch.Tensor,
    gate_up_weight: torch.Tensor,
    gate_up_bias: torch.Tensor | None,
    down_weight: torch.Tensor,
    down_bias: torch.Tensor | None,
) -> torch.Tensor:
    """The gated MLP (Shazeer, 2020): down(silu(gate(x)) * up(x))."""
    gate, up = linear.reference(x, gate_up_weight, gate_up_bias).chunk(2, dim=-1)
    out: torch.Tensor = linear.reference(silu_mul.reference(gate, up), down_weight, down_bias)
    return out


def _mha_case(case: Case) -> Args:
    step = case.step()
    rows = (case["heads"] + 2 * case["kv_heads"]) * case["head_dim"]
    norms = tuple(case.norm_weight(case["head_dim"]) if case.bias else None for _ in range(2))
    return (
        case.floats(step.tokens, case["hidden"]),
        case.weight(rows, case["hidden"]),
        case.vector(rows),
        *norms,
        EPS,
        case.table(),
        *case.poisoned(step),
        step,
        case.weight(case["hidden"], case["heads"] * case["head_dim"]),
        case.vector(case["hidden"]),
        case["heads"],
        case["head_dim"] ** -0.5,
        case["window"] or None,
        0,
    )


@op(
    Arg("x", ("tokens", "hidden")),
    Arg("qkv_weight", ("(heads + 2 * kv_heads) * head_dim", "hidden"), weight=True),
    Arg("qkv_bias", ("(heads + 2 * kv_heads) * head_dim",), optional=True, weight=True),
    Arg("q_norm", ("head_dim",), optional=True, weight=True, doc="None: no normalisation of q and k"),
    Arg("k_norm", ("head_dim",), optional=True, weight=True),
    Arg("eps", dtype="float"),
    Arg("table", ("positions", "rotary_dim"), "float32"),
    K_WRITTEN,
    V_WRITTEN,
    STEP_ARG,
    Arg("out_weight", ("hidden", "heads * head_dim"), weight=True),
    Arg("out_bias", ("hidden",), optional=True, weight=True),
    Arg("heads", dtype="int"),
    Arg("scale", dtype="float"),
    Arg("window", dtype="int", optional=True),
    GROUP,
    returns=(Arg("out", ("tokens", "hidden")), K_CACHE, V_CACHE),
    error=accumulated("context", 16.0),
    composed_of=("linear", "rms_norm", "rope", "kv_write", "paged_attention"),
    checks=Checks(_mha_case, special=None),
)
def mha(
    x: torch.Tensor,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor | None,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    eps: float,
    table: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    step: Step,
    out_weight: torch.Tensor,
    out_bias: torch.Tensor | None,
    heads: int,
    scale: float,
    window: int | None = None,
    group: int = 0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The whole attention block, from the normalised hidden state to the output projection; writes this step's KV."""
    kv_heads, head_dim = k_cache.shape[2], k_cache.shape[3]
    heads_all = linear.reference(x, qkv_weight, qkv_bias).view(-1, heads + 2 * kv_heads, head_dim)
    q, k, v = heads_all.split((heads, kv_heads, kv_heads), dim=1)
    if q_norm is not None and k_norm is not None:
        q, k = rms_norm.reference(q, q_norm, eps), rms_norm.reference(k, k_norm, eps)
    q, k = rope.reference(q, k, step, table)
    kv_write.reference(k, v, k_cache, v_cache, step, group)
    mixed = paged_attention.reference(q, k_cache, v_cache, step, scale, window, group)
    return linear.reference(mixed.flatten(1), out_weight, out_bias), k_cache, v_cache


__all__ = ["ffn", "mha"]
