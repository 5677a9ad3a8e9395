"""Kernels on integer weights with wrong levels, scales or rounding. Knows no check."""

from __future__ import annotations

import torch

from anychip_sdk.conformance.mutants.base import mutant
from anychip_sdk.ops import CATALOGUE
from anychip_sdk.ops.quantized import BLOCK, dequantized_int8, packed, rounded, unpacked

Tensor = torch.Tensor


@mutant("AC-OP-001", op="linear_int8")
def activations_are_truncated(
    x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None = None, block: int = BLOCK
) -> Tensor:
    """Activations are rounded towards zero, not to the nearest level."""
    levels, step = rounded(x, block)
    exact = torch.where(step == 0, torch.zeros_like(step), x.to(step.dtype) / step)
    shortened = torch.where(levels.abs() > exact.abs(), levels - levels.sign(), levels) * step
    total = shortened @ dequantized_int8(weight, scale.to(step.dtype)).T
    return (total if bias is None else total + bias.to(step.dtype)).to(x.dtype)


@mutant("AC-OP-001", op="linear_int4")
def nibbles_are_neighbours(
    x: Tensor, weight: Tensor, scale: Tensor, minimum: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """A byte is read as two neighbouring levels, not as two that lie 16 apart."""
    levels = unpacked(weight).unflatten(-1, (-1, 2, 16)).transpose(-1, -2).flatten(-3)
    found: Tensor = CATALOGUE["linear_int4"].reference(x, packed(levels), scale, minimum, bias)
    return found


@mutant("AC-OP-001", op="lm_head_int8")
def scales_are_the_next_rows(x: Tensor, weight: Tensor, scale: Tensor, block: int = BLOCK) -> Tensor:
    """Each logit is scaled like the one behind it."""
    found: Tensor = CATALOGUE["lm_head_int8"].reference(x, weight, scale.roll(-1, 0), block)
    return found


__all__ = ["activations_are_truncated", "nibbles_are_neighbours", "scales_are_the_next_rows"]
