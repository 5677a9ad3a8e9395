"""The decoder that the Llama family shares: what differs between its members is in the config. Knows no checkpoint."""

from __future__ import annotations

import torch
from torch import nn

from anychip.models.attention import Attention
from anychip.models.config import ModelConfig
from anychip.models.layers import Embedding, LMHead, RMSNorm
from anychip.models.mlp import GatedMLP
from anychip_sdk import ops
from anychip_sdk.ops import AttentionBatch


class DecoderLayer(nn.Module):
    """Pre-norm residual block: attention, then MLP."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = GatedMLP(config)

    def forward(
        self,
        x: torch.Tensor,
        positions: torch.Tensor,
        table: torch.Tensor,
        slots: torch.Tensor,
        batch: AttentionBatch,
    ) -> torch.Tensor:
        x = ops.add(self.self_attn(self.input_layernorm(x), positions, table, slots, batch), x)
        return ops.add(self.mlp(self.post_attention_layernorm(x)), x)  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """Embedding, layers and the last norm; names follow the checkpoints."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(config, layer) for layer in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.register_buffer("rope_table", torch.empty(1, config.head_dim, device="meta"), persistent=False)

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        batch: AttentionBatch,
        logit_rows: torch.Tensor,
    ) -> torch.Tensor:
        x = self.embed_tokens(token_ids)
        for layer in self.layers:
            x = layer(x, positions, self.rope_table, slots, batch)
        return self.norm(ops.select_rows(x, logit_rows))  # type: ignore[no-any-return]


class CausalLM(nn.Module):
    """token_ids, positions, slots int64 [tokens], batch, logit_rows int64 [rows] -> logits float32 [rows, vocab]."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Decoder(config)
        tied = self.model.embed_tokens.weight if config.tie_word_embeddings else None
        self.lm_head = LMHead(config.hidden_size, config.vocab_size, tied_to=tied)

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        batch: AttentionBatch,
        logit_rows: torch.Tensor,
    ) -> torch.Tensor:
        return self.lm_head(self.model(token_ids, positions, slots, batch, logit_rows))  # type: ignore[no-any-return]


__all__ = ["CausalLM", "Decoder", "DecoderLayer"]
