"""Whole blocks of a layer from this backend's own kernels: fewer graph nodes, fewer passes. Knows no model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from anychip_cpu.kernels import rope
from anychip_cpu.kernels.attention import NativeAttention
from anychip_cpu.kernels.cache import kv_write
from anychip_cpu.kernels.rows import NO_NORMS, Norms, Pair, Rows, Turn
from anychip_sdk.ops.base import AttentionBatch

#: x, a weight as it was prepared, a bias
Multiply = Callable[[torch.Tensor, Any, "torch.Tensor | None"], torch.Tensor]


class Ffn:
    """The gated MLP."""

    def __init__(self, multiply: Multiply, rows: Rows) -> None:
        self._multiply = multiply
        self._rows = rows

    def __call__(
        self,
        x: torch.Tensor,
        gate_up_weight: torch.Tensor,
        gate_up_bias: torch.Tensor | None,
        down_weight: torch.Tensor,
        down_bias: torch.Tensor | None,
    ) -> torch.Tensor:
        gate, up = self._multiply(x, gate_up_weight, gate_up_bias).chunk(2, dim=-1)
        return self._multiply(self._rows.silu_mul(gate, up), down_weight, down_bias)


class Mha:
    """The attention block: queries and keys are normalised and turned as the one tensor that they come in."""

    def __init__(self, multiply: Multiply, attention: NativeAttention, rows: Rows) -> None:
        self._multiply = multiply
        self._attention = attention
        self._rows = rows

    def __call__(
        self,
        x: torch.Tensor,
        positions: torch.Tensor,
        qkv_weight: torch.Tensor,
        qkv_bias: torch.Tensor | None,
        q_norm: torch.Tensor | None,
        k_norm: torch.Tensor | None,
        eps: float,
        table: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        slots: torch.Tensor,
        batch: AttentionBatch,
        out_weight: torch.Tensor,
        out_bias: torch.Tensor | None,
        heads: int,
        scale: float,
        window: int | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        kv_heads, head_dim = k_cache.shape[2:]
        qkv = self._multiply(x, qkv_weight, qkv_bias).view(-1, heads + 2 * kv_heads, head_dim)
        norms = NO_NORMS if q_norm is None or k_norm is None else Norms((q_norm, k_norm, None), eps)
        turn, caches = Turn(positions, table), (k_cache, v_cache)
        if self._rows.can_prepare(qkv, norms, turn, caches, slots):
            q = self._rows.prepare(qkv, heads, norms, turn, caches, slots)
        else:
            q = _prepare(qkv, heads, norms, turn, caches, slots, batch)
        mixed = self._attention(q, k_cache, v_cache, batch, scale, window)
        return self._multiply(mixed.flatten(1), out_weight, out_bias), k_cache, v_cache


def _prepare(
    qkv: torch.Tensor, heads: int, norms: Norms, turn: Turn, caches: Pair, slots: torch.Tensor, batch: AttentionBatch
) -> torch.Tensor:
    """`Rows.prepare` in torch."""
    kv_heads = caches[0].shape[2]
    both, v = qkv.split((heads + kv_heads, kv_heads), dim=1)
    angles = batch.once(f"cpu.angles {turn.table.data_ptr()}", lambda: rope.angles(*turn))
    q_norm, k_norm, _ = norms.weights
    weights = None if q_norm is None or k_norm is None else rope.Norms(heads, q_norm, k_norm, norms.eps)
    parts: tuple[torch.Tensor, ...] = rope.turned(both, angles, weights).split((heads, kv_heads), dim=1)
    q, k = parts
    kv_write(k, v, *caches, slots)
    return q


def plain(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """The product with a weight as it was loaded."""
    return functional.linear(x, weight, bias)


__all__ = ["Ffn", "Mha", "plain"]
