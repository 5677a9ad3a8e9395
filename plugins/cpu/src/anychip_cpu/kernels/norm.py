"""Normalisation with few passes. Knows the last dimension only."""

from __future__ import annotations

import torch
from torch.nn import functional


def scaled(x: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) in float32, a new tensor.

    The square sum through vector_norm is one pass without a temporary; mean(pow(2)) takes two and was 7 times slower.
    """
    wide = x.float()
    norm = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    inverse = norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
    return wide.mul_(inverse) if wide is not x else wide * inverse


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return scaled(x, eps).to(x.dtype).mul_(weight)


def rms_norm_offset(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return scaled(x, eps).mul_(weight.float() + 1.0).to(x.dtype)


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float) -> torch.Tensor:
    return functional.layer_norm(x, weight.shape, weight, bias, eps)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    total = x + residual
    return scaled(total, eps).to(total.dtype).mul_(weight), total


__all__ = ["add_rms_norm", "layer_norm", "rms_norm", "rms_norm_offset", "scaled"]
