"""Whole blocks of a layer from this backend's own kernels: fewer graph nodes, fewer passes. Knows no model."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from anychip_cpu.kernels import packed, rope
from anychip_cpu.kernels.attention import NativeAttention
from anychip_cpu.kernels.cache import kv_write
from anychip_cpu.kernels.elementwise import silu_mul
from anychip_sdk.ops.base import AttentionBatch

Multiply = Callable[[torch.Tensor, torch.Tensor, "torch.Tensor | None"], torch.Tensor]


class Ffn:
    """The gated MLP."""

    def __init__(self, multiply: Multiply) -> None:
        self._multiply = multiply

    def __call__(
        self,
        x: torch.Tensor,
        gate_up_weight: torch.Tensor | packed.GateUp,
        gate_up_bias: torch.Tensor | None,
        down_weight: torch.Tensor,
        down_bias: torch.Tensor | None,
    ) -> torch.Tensor:
        if isinstance(gate_up_weight, packed.GateUp):
            gate_bias, up_bias = (None, None) if gate_up_bias is None else gate_up_bias.chunk(2)
            inner = packed.multiply_gated(x, gate_up_weight, gate_bias, up_bias)
        else:
            inner = silu_mul(*self._multiply(x, gate_up_weight, gate_up_bias).chunk(2, dim=-1))
        return self._multiply(inner, down_weight, down_bias)


class Mha:
    """The attention block: queries and keys are normalised and turned as the one tensor that they come in."""

    def __init__(self, multiply: Multiply, attention: NativeAttention) -> None:
        self._multiply = multiply
        self._attention = attention

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
        heads_all = self._multiply(x, qkv_weight, qkv_bias).view(-1, heads + 2 * kv_heads, head_dim)
        both, v = heads_all.split((heads + kv_heads, kv_heads), dim=1)
        turn = batch.once(f"cpu.angles {table.data_ptr()}", lambda: rope.angles(positions, table))
        norms = None
        if q_norm is not None and k_norm is not None:
            norms = rope.Norms(heads, q_norm, k_norm, eps)
        q, k = rope.turned(both, turn, norms).split((heads, kv_heads), dim=1)
        kv_write(k, v, k_cache, v_cache, slots)
        mixed = self._attention(q, k_cache, v_cache, batch, scale, window)
        return self._multiply(mixed.flatten(1), out_weight, out_bias), k_cache, v_cache


def plain(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """The product with a weight as it was loaded."""
    return functional.linear(x, weight, bias)


__all__ = ["Ffn", "Mha", "plain"]
