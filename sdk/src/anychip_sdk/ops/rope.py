"""Rotary position embedding (Su et al., 2021) by a table. Knows positions; knows no scaling: that is in the table."""

from __future__ import annotations

import torch

from anychip_sdk.ops import cases
from anychip_sdk.ops.attention import STEP_ARG
from anychip_sdk.ops.base import Arg, accurate, cancelling, op
from anychip_sdk.ops.cases import Args, Case
from anychip_sdk.ops.checks import Checks, Terms, plant_not_a_number
from anychip_sdk.ops.norm import normalise
from anychip_sdk.step import Step

Q = Arg("q", ("tokens", "heads", "head_dim"), doc="may be a strided view")
K = Arg("k", ("tokens", "kv_heads", "head_dim"), doc="may be a strided view")
TABLE = Arg("table", ("positions", "rotary_dim"), "float32", doc="cosines in the first half, sines in the second")
RESULTS = (Arg("q_out", ("tokens", "heads", "head_dim")), Arg("k_out", ("tokens", "kv_heads", "head_dim")))


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn the pairs (x[i], x[i + rotary_dim/2]) of each head; what lies behind rotary_dim passes through."""
    half = cos.shape[-1]
    exact = accurate(x.dtype)
    first, second, rest = x[..., :half].to(exact), x[..., half : 2 * half].to(exact), x[..., 2 * half :]
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
    return torch.cat((turned, rest), dim=-1) if rest.shape[-1] else turned


def angles(table: torch.Tensor, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines [tokens, 1, rotary_dim / 2] of the positions."""
    rows = table.index_select(0, positions).to(accurate(dtype)).unsqueeze(1)
    cos, sin = rows.chunk(2, dim=-1)
    return cos, sin


def _pairs(x: torch.Tensor, rotary_dim: int) -> torch.Tensor:
    """|x[i]| + |x[i + rotary_dim/2]| for both of a pair."""
    first, second, rest = x.abs().split((rotary_dim // 2, rotary_dim // 2, x.shape[-1] - rotary_dim), dim=-1)
    return torch.cat((first + second, first + second, rest), dim=-1)


def _case(case: Case) -> Args:
    return *case.heads(case["tokens"])[:2], case.looked_up(), case.table()


def _terms(q: torch.Tensor, k: torch.Tensor, step: Step, table: torch.Tensor) -> list[Terms]:
    return [Terms(_pairs(x, table.shape[-1])) for x in (q, k)]


@op(Q, K, STEP_ARG, TABLE, returns=RESULTS, error=cancelling(4), checks=Checks(_case, plant_not_a_number, _terms))
def rope(q: torch.Tensor, k: torch.Tensor, step: Step, table: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate queries and keys to their positions; half-split pairs (the Hugging Face layout)."""
    cos, sin = angles(table, step.positions, q.dtype)
    return rotate(q, cos, sin), rotate(k, cos, sin)


def _normed_case(case: Case) -> Args:
    q, k, step, table = _case(case)
    return q, k, case.norm_weight(case["head_dim"]), case.norm_weight(case["head_dim"]), cases.EPS, step, table


def _normed_terms(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    eps: float,
    step: Step,
    table: torch.Tensor,
) -> list[Terms]:
    """The normalised heads are rounded twice before they are turned."""
    sizes = [_pairs(normalise(x, weight, eps), table.shape[-1]) for x, weight in ((q, q_weight), (k, k_weight))]
    return [Terms(size * size.shape[-1] ** 0.5, 2 * size) for size in sizes]


@op(
    Q,
    K,
    Arg("q_weight", ("head_dim",), weight=True),
    Arg("k_weight", ("head_dim",), weight=True),
    Arg("eps", dtype="float"),
    STEP_ARG,
    TABLE,
    returns=RESULTS,
    error=cancelling(6),
    composed_of=("rms_norm", "rope"),
    checks=Checks(_normed_case, plant_not_a_number, _normed_terms),
)
def qk_norm_rope(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    eps: float,
    step: Step,
    table: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """rms_norm of each head of q and k, then rope."""
    cos, sin = angles(table, step.positions, q.dtype)
    return rotate(normalise(q, q_weight, eps), cos, sin), rotate(normalise(k, k_weight, eps), cos, sin)


__all__ = ["angles", "qk_norm_rope", "rope", "rotate"]
