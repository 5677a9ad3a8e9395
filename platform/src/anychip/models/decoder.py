"""The decoder that Llama-like families share. Families whose layers differ bring their own."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from anychip.models.attention import Attention
from anychip.models.decoder_config import DecoderConfig
from anychip.models.layers import Embedding, LMHead, RMSNorm
from anychip.models.mlp import GatedMLP
from anychip.models.rope import RotaryTable
from anychip_sdk import ops
from anychip_sdk.step import Step


class DecoderLayer(nn.Module):
    """Pre-norm residual block: attention, then MLP."""

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = GatedMLP(config)

    def forward(self, x: torch.Tensor, step: Step, table: torch.Tensor) -> torch.Tensor:
        x = ops.add(self.self_attn(self.input_layernorm(x), step, table), x)
        return ops.add(self.mlp(self.post_attention_layernorm(x)), x)  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """Embedding, layers and the last norm; names follow the checkpoints."""

    def __init__(self, config: DecoderConfig, layers: Iterable[nn.Module] | None = None) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        if layers is None:
            layers = (DecoderLayer(config, layer) for layer in range(config.num_layers))
        self.layers = nn.ModuleList(layers)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rope = RotaryTable(config.rope, config.head_dim)

    def forward(self, step: Step) -> torch.Tensor:
        x = self.embed_tokens(step)
        for layer in self.layers:
            x = layer(x, step, self.rope.table)
        return self.norm(ops.select_rows(x, step))  # type: ignore[no-any-return]


class CausalLM(nn.Module):
    """A step in, logits float32 [logits, vocab] out.

    `layers` are called as `DecoderLayer` is; None: they are those.
    """

    def __init__(self, config: DecoderConfig, layers: Iterable[nn.Module] | None = None) -> None:
        super().__init__()
        self.config = config
        self.model = Decoder(config, layers)
        tied = self.model.embed_tokens.weight if config.tie_word_embeddings else None
        self.lm_head = LMHead(config.hidden_size, config.vocab_size, tied_to=tied)

    def forward(self, step: Step) -> torch.Tensor:
        return self.lm_head(self.model(step))  # type: ignore[no-any-return]


__all__ = ["CausalLM", "Decoder", "DecoderLayer"]
