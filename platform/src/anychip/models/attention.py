"""Grouped-query attention with rotary positions over keys and values that it keeps. Knows heads; knows no pool."""

from __future__ import annotations

import torch
from torch import nn

from anychip.models.decoder_config import DecoderConfig
from anychip.models.layers import Linear, RMSNorm
from anychip.models.state import KeysAndValues
from anychip_sdk import ops
from anychip_sdk.step import Step


class Attention(nn.Module):
    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        self.scale = config.head_dim**-0.5
        self.window = config.window(layer)
        bias = config.attention_bias
        self.q_proj = Linear(config.hidden_size, config.q_size, bias=bias)
        self.k_proj = Linear(config.hidden_size, config.kv_size, bias=bias)
        self.v_proj = Linear(config.hidden_size, config.kv_size, bias=bias)
        self.o_proj = Linear(config.q_size, config.hidden_size, bias=config.attention_out_bias)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps) if config.qk_norm else None
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps) if config.qk_norm else None
        self.kv = KeysAndValues(config.num_kv_heads, config.head_dim, self.window)

    def forward(self, x: torch.Tensor, step: Step, table: torch.Tensor) -> torch.Tensor:
        """x: [tokens, hidden]; table: [positions, rotary_dim]."""
        q = self.q_proj(x).view(-1, self.heads, self.head_dim)
        k = self.k_proj(x).view(-1, self.kv_heads, self.head_dim)
        v = self.v_proj(x).view(-1, self.kv_heads, self.head_dim)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = ops.rope(q, k, step, table)
        k_cache, v_cache = ops.kv_write(k, v, self.kv.k, self.kv.v, step, self.kv.group)
        mixed = ops.paged_attention(q, k_cache, v_cache, step, self.scale, self.window, self.kv.group)
        return self.o_proj(mixed.flatten(1))  # type: ignore[no-any-return]


__all__ = ["Attention"]
