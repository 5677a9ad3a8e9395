"""Whole blocks of a layer composed of the vendor's ops: fewer nodes in the graph, no copies between. Knows no model."""

from __future__ import annotations

import torch

from anychip_kunlun.kernels.attention import Attention
from anychip_kunlun.kernels.cache import Cache
from anychip_kunlun.kernels.linear import Linear
from anychip_kunlun.kernels.preparing import BlockStep
from anychip_kunlun.kernels.rope import Norms, Rope
from anychip_kunlun.kernels.rows import Rows
from anychip_kunlun.vendor import VendorOps


class Blocks:
    def __init__(self, vendor: VendorOps, rows: Rows, rope: Rope, linear: Linear, attention: Attention) -> None:
        self._rows = rows
        self._rope = rope
        self._linear = linear.linear
        self._cache = Cache(vendor)
        self._attention = attention

    def ffn(
        self,
        x: torch.Tensor,
        gate_up_weight: torch.Tensor,
        gate_up_bias: torch.Tensor | None,
        down_weight: torch.Tensor,
        down_bias: torch.Tensor | None,
    ) -> torch.Tensor:
        inner = self._rows.swiglu(self._linear(x, gate_up_weight, gate_up_bias))
        return self._linear(inner, down_weight, down_bias)

    def mha(
        self,
        x: torch.Tensor,
        qkv_weight: torch.Tensor,
        qkv_bias: torch.Tensor | None,
        q_norm: torch.Tensor | None,
        k_norm: torch.Tensor | None,
        eps: float,
        table: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        step: BlockStep,
        out_weight: torch.Tensor,
        out_bias: torch.Tensor | None,
        heads: int,
        scale: float,
        window: int | None = None,
        group: int = 0,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        kv_heads, head_dim = k_cache.shape[2:]
        qkv = self._linear(x, qkv_weight, qkv_bias)
        norms = None if q_norm is None or k_norm is None else Norms(q_norm, k_norm, eps)
        q, k, v = self._rope.split(qkv, heads, kv_heads, head_dim, norms, step.turn)
        self._cache.kv_write(k, v, k_cache, v_cache, step.slots)
        mixed = self._attention(q, k_cache, v_cache, step.attention, scale, window)
        return self._linear(mixed.flatten(1), out_weight, out_bias), k_cache, v_cache


__all__ = ["Blocks"]
