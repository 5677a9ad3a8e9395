"""Latent attention: one vector per token that keys and values of all heads are made of. Knows heads; knows no pool."""

from __future__ import annotations

import torch
from torch import nn

from anychip.models.decoder import DecoderLayer
from anychip.models.latent_config import LatentConfig, LatentShape
from anychip.models.layers import Linear, empty
from anychip.models.state import State
from anychip_sdk import ops
from anychip_sdk.state import StateSpec, StateTensor
from anychip_sdk.step import Step


class Latents(State):
    """What a token keeps: `latent`, [rank + rope_dim]."""

    latent: torch.Tensor

    def __init__(self, shape: LatentShape) -> None:
        super().__init__(StateSpec("latent", "paged", (StateTensor("latent", (shape.rank + shape.rope_dim,)),)))


class KeysAndValuesOfLatents(nn.Module):
    """What makes the keys and the values of all heads: checkpoints hold both as one matrix, each head's side by side.

    Each half is read in either form of the op, so nothing is held twice.
    """

    def __init__(self, heads: int, shape: LatentShape) -> None:
        super().__init__()
        self.key_weight = empty(heads * shape.nope_dim, shape.rank)
        self.value_weight = empty(heads * shape.value_dim, shape.rank)


class LatentAttention(nn.Module):
    def __init__(self, config: LatentConfig, layer: int) -> None:
        super().__init__()
        shape, hidden, heads = config.latent, config.hidden_size, config.num_heads
        self.shape, self.heads, self.scale = shape, heads, config.attention(layer).scale
        bias, width = config.attention_bias, heads * shape.key_dim
        if shape.q_rank is None:
            self.q_proj = Linear(hidden, width)
        else:
            self.q_a_proj = Linear(hidden, shape.q_rank, bias=bias)
            self.q_a_layernorm = config.norm(shape.q_rank)
            self.q_b_proj = Linear(shape.q_rank, width)
        self.kv_a_proj_with_mqa = Linear(hidden, shape.rank + shape.rope_dim, bias=bias)
        self.kv_a_layernorm = config.norm(shape.rank)
        self.kv_b_proj = KeysAndValuesOfLatents(heads, shape)
        self.o_proj = Linear(heads * shape.value_dim, hidden, bias=bias)
        self.latents = Latents(shape)

    def forward(self, x: torch.Tensor, step: Step, table: torch.Tensor) -> torch.Tensor:
        """x: [tokens, hidden]; table: [positions, rope_dim]."""
        shape, group = self.shape, self.latents.group
        q = self.q_proj(x) if shape.q_rank is None else self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
        q_nope, q_rope = q.view(-1, self.heads, shape.key_dim).split((shape.nope_dim, shape.rope_dim), -1)
        latent, rotated = self.kv_a_proj_with_mqa(x).split((shape.rank, shape.rope_dim), -1)
        q_rope, rotated = ops.rope(q_rope, rotated.view(-1, 1, shape.rope_dim), step, table)
        latent = self.kv_a_layernorm(latent)
        cache = ops.latent_write(latent, rotated.flatten(1), self.latents.latent, step, group)
        makers = self.kv_b_proj.key_weight, self.kv_b_proj.value_weight
        mixed = ops.latent_attention(q_nope, q_rope, cache, step, *makers, self.scale, shape.expand_from, group)
        return self.o_proj(mixed)  # type: ignore[no-any-return]


class LatentLayer(DecoderLayer):
    """A decoder's layer with latent attention."""

    def __init__(self, config: LatentConfig, layer: int) -> None:
        super().__init__(config, layer)
        self.self_attn = LatentAttention(config, layer)


__all__ = ["LatentAttention", "LatentLayer", "Latents"]
