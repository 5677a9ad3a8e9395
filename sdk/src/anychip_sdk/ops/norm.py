"""Normalisation: by the root mean square (Zhang and Sennrich, 2019), and around the mean. Knows a row at a time."""

from __future__ import annotations

import torch
from torch.nn import functional

from anychip_sdk.ops import cases
from anychip_sdk.ops.base import Arg, accurate, cancelling, op, ulps
from anychip_sdk.ops.cases import Args, Case
from anychip_sdk.ops.checks import Checks, Terms, plant_not_a_number

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


def _offset_case(case: Case) -> Args:
    x, weight, eps = _case(case)
    return x, weight - 1.0, eps


def _layer_case(case: Case) -> Args:
    x, weight, eps = _case(case)
    return x, weight, case.vector(case["hidden"]), eps


def _layer_terms(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float) -> list[Terms]:
    """A row's mean is taken off each element, and its error with it."""
    centred = x - x.mean(-1, keepdim=True)
    size = (x.abs() + x.abs().mean(-1, keepdim=True)) * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    sums = size * weight.abs() + (0.0 if bias is None else bias.abs())
    return [Terms(sums * max(1, x.shape[-1]) ** 0.5)]


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
    WEIGHT,
    EPS,
    returns=Arg("out", ("...", "dim")),
    error=ulps(4),
    checks=Checks(_offset_case, plant_not_a_number),
)
def rms_norm_offset(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """(1 + weight) * x / sqrt(mean(x^2) + eps), rounded once: weights are held as their distance from 1."""
    wide = x.to(accurate(x.dtype))
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return (wide * scale * (1.0 + weight.to(wide.dtype))).to(x.dtype)


@rms_norm_offset.mistake
def _rms_norm_offset_has_no_offset(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The weight is taken as it is."""
    return normalise(x, weight, eps)


@op(
    Arg("x", ("...", "dim")),
    WEIGHT,
    Arg("bias", ("dim",), optional=True, weight=True),
    EPS,
    returns=Arg("out", ("...", "dim")),
    error=cancelling(8),
    checks=Checks(_layer_case, plant_not_a_number, _layer_terms),
)
def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float) -> torch.Tensor:
    """weight * (x - mean(x)) / sqrt(variance(x) + eps) + bias, rounded once (Ba et al., 2016)."""
    exact = accurate(x.dtype)
    shift = None if bias is None else bias.to(exact)
    return functional.layer_norm(x.to(exact), weight.shape, weight.to(exact), shift, eps).to(x.dtype)


@layer_norm.mistake
def _layer_norm_keeps_the_mean(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float
) -> torch.Tensor:
    """The mean is not taken off."""
    out = normalise(x, weight, eps)
    return out if bias is None else out + bias


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


__all__ = ["add_rms_norm", "layer_norm", "normalise", "rms_norm", "rms_norm_offset"]
