"""The table of cosines and sines that the rope ops read. Knows the scalings; knows no query and no key.

default: Su et al., 2021. linear: Chen et al., 2023 (position interpolation). yarn: Peng et al., 2023.
llama3: the frequency-dependent interpolation of Llama 3.1. longrope: Ding et al., 2024.
"""

from __future__ import annotations

import math

import torch

from anychip.models.rope_config import RopeConfig
from anychip.models.state import Table


class RotaryTable(Table):
    """The table of a model whose layers share one rotation."""

    def __init__(self, rope: RopeConfig, rotary_dim: int) -> None:
        super().__init__()
        self.rope = rope
        self.register_buffer("table", torch.empty(1, rotary_dim, device="meta"), persistent=False)

    def compute(self, positions: int) -> torch.Tensor:
        """float32 [positions, rotary_dim]."""
        return rope_table(self.rope, self.table.shape[-1], positions)


def rope_table(rope: RopeConfig, rotary_dim: int, positions: int) -> torch.Tensor:
    """float32 [positions, rotary_dim]: cosines of the rotary_dim / 2 angles, then their sines."""
    frequencies, factor = _frequencies(rope, rotary_dim, positions)
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), frequencies)
    return torch.cat((angles.cos(), angles.sin()), dim=-1) * factor


def _frequencies(rope: RopeConfig, dim: int, positions: int) -> tuple[torch.Tensor, float]:
    """Angle per position of each pair, and what cosines and sines are multiplied with."""
    exponents = torch.arange(0, dim, 2, dtype=torch.int64).float() / dim
    plain = 1.0 / (rope.theta**exponents)
    if rope.type == "linear":
        return plain / rope.factor, 1.0
    if rope.type == "llama3":
        return _llama3(rope, plain), 1.0
    if rope.type == "yarn":
        return _yarn(rope, plain, dim), _yarn_attention_factor(rope)
    if rope.type == "longrope":
        return _longrope(rope, plain, positions)
    return plain, 1.0


def _longrope(rope: RopeConfig, plain: torch.Tensor, positions: int) -> tuple[torch.Tensor, float]:
    """One set of factors for all positions, as keys in the cache are turned already."""
    original = rope.original_max_positions or 1
    factors = rope.long_factors if positions > original else rope.short_factors
    scale = rope.attention_factor
    if scale is None:
        scale = 1.0 if rope.factor <= 1 else math.sqrt(1 + math.log(rope.factor) / math.log(original))
    return plain / torch.tensor(factors), scale


def _llama3(rope: RopeConfig, plain: torch.Tensor) -> torch.Tensor:
    """Long wavelengths are interpolated, short ones kept, those between blended."""
    original = float(rope.original_max_positions or 0)
    wavelengths = 2 * math.pi / plain
    share = (original / wavelengths - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blend = share.clamp(0.0, 1.0)
    return (1 - blend) * plain / rope.factor + blend * plain


def _yarn(rope: RopeConfig, plain: torch.Tensor, dim: int) -> torch.Tensor:
    """Pairs that turn often within the original context are kept, those that turn rarely interpolated."""
    original = float(rope.original_max_positions or 0)

    def pair_with(turns: float) -> float:
        return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = pair_with(rope.beta_fast), pair_with(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001  # the ramp needs a width
    ramp = ((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0.0, 1.0)
    return plain / rope.factor * ramp + plain * (1 - ramp)


def _yarn_attention_factor(rope: RopeConfig) -> float:
    def scale(weight: float) -> float:
        return 1.0 if rope.factor <= 1 else 0.1 * weight * math.log(rope.factor) + 1.0

    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return scale(rope.mscale) / scale(rope.mscale_all_dim)
    return scale(1.0)


__all__ = ["RotaryTable", "rope_table"]
