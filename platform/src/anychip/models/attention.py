"""Grouped-query attention with rotary positions over keys and values that it keeps. Knows heads; knows no pool."""

from __future__ import annotations

import torch
from torch import nn

from anychip.models.decoder_config import DecoderConfig
from anychip.models.layers import Linear, empty
from anychip.models.state import KeysAndValues
from anychip_sdk import ops
from anychip_sdk.step import Step

Heads = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Attention(nn.Module):
    """Families whose heads are made or turned in another way override `project` and `turn`."""

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        traits = config.attention(layer)
        self.heads, self.kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        self.scale, self.window, self.soft_cap = traits.scale, traits.window, traits.soft_cap
        self.is_turned = traits.is_turned
        bias = config.attention_bias
        self.q_proj = Linear(config.hidden_size, config.q_size, bias=bias)
        self.k_proj = Linear(config.hidden_size, config.kv_size, bias=bias)
        self.v_proj = Linear(config.hidden_size, config.kv_size, bias=bias)
        self.o_proj = Linear(config.q_size, config.hidden_size, bias=config.attention_out_bias)
        self.q_norm = config.norm(config.head_dim) if config.qk_norm else None
        self.k_norm = config.norm(config.head_dim) if config.qk_norm else None
        self.sinks = empty(config.num_heads) if traits.has_sinks else None
        self.kv = KeysAndValues(config.num_kv_heads, config.head_dim, self.window)

    def forward(self, x: torch.Tensor, step: Step, table: torch.Tensor) -> torch.Tensor:
        """x: [tokens, hidden]; table: [positions, rotary_dim]."""
        q, k, v = self.project(x)
        q, k = self.turn(q, k, step, table)
        return self.o_proj(self.mix(q, k, v, step))  # type: ignore[no-any-return]

    def mix(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, step: Step) -> torch.Tensor:
        """What the queries see of all keys and values that are kept, these among them: [tokens, heads * head_dim]."""
        k_cache, v_cache = ops.kv_write(k, v, self.kv.k, self.kv.v, step, self.kv.group)
        mixed = ops.paged_attention(
            q, k_cache, v_cache, step, self.scale, self.window, self.kv.group, self.soft_cap, self.sinks
        )
        return mixed.flatten(1)  # type: ignore[no-any-return]

    def project(self, x: torch.Tensor) -> Heads:
        """Queries, keys and values [tokens, heads, head_dim]."""
        q = self.q_proj(x).view(-1, self.heads, self.head_dim)
        k = self.k_proj(x).view(-1, self.kv_heads, self.head_dim)
        v = self.v_proj(x).view(-1, self.kv_heads, self.head_dim)
        return q, k, v

    def turn(
        self, q: torch.Tensor, k: torch.Tensor, step: Step, table: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Normalised head by head and turned to their positions, where this layer does so."""
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if self.is_turned:
            q, k = ops.rope(q, k, step, table)
        return q, k


__all__ = ["Attention", "Heads"]
