"""Root mean square normalisation (Zhang and Sennrich, 2019). Knows the last dimension only."""

from __future__ import annotations

import torch

from anychip_sdk.ops import cases
from anychip_sdk.ops.base import Arg, accurate, op, ulps
from anychip_sdk.ops.cases import Args, Case
from anychip_sdk.ops.checks import Checks, plant_not_a_number

WEIGHT = Arg("weight", ("dim",), weight=True)
EPS = Arg("eps", dtype="float")


def normalise(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) in at least float32, rounded, then times weight."""
    wide = x.to(accurate(x.dtype))
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return (wide * scale).to(x.dtype) * weight


def _sum_case(case: Case) -> Args:
    return *case.two(), case.norm_weight(case["hidden"]), cases.EPS


def _case(case: Case) -> Args:
    x, _, weight, eps = _sum_case(case)
    return x, weight, eps


@op(
    Arg("x", ("...", "dim")),
    WEIGHT,
    EPS,
    returns=Arg("out", ("...", "dim")),
    error=ulps(4),
    checks=Checks(_case, plant_not_a_number),
)
def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """weight * x / sqrt(mean(x^2) + eps)."""
    return normalise(x, weight, eps)


@op(
    Arg("x", ("...", "dim")),
    Arg("residual", ("...", "dim")),
    WEIGHT,
    EPS,
    returns=(Arg("out", ("...", "dim")), Arg("total", ("...", "dim"), doc="x + residual, rounded")),
    error=ulps(4),
    composed_of=("add", "rms_norm"),
    checks=Checks(_sum_case, plant_not_a_number),
)
def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The residual sum and its normalisation: (rms_norm(x + residual), x + residual)."""
    total = x + residual
    return normalise(total, weight, eps), total


__all__ = ["add_rms_norm", "normalise", "rms_norm"]
