"""The decoder that Llama-like families share. Families whose layers differ bring their own."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from anychip.models.attention import Attention
from anychip.models.decoder_config import DecoderConfig
from anychip.models.layers import Embedding, LMHead
from anychip.models.mlp import GatedMLP
from anychip.models.rope import RotaryTable
from anychip_sdk import ops
from anychip_sdk.step import Step


class DecoderLayer(nn.Module):
    """Pre-norm residual block: attention, then MLP."""

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        self.input_layernorm = config.norm(config.hidden_size)
        self.self_attn: nn.Module = Attention(config, layer)
        self.post_attention_layernorm = config.norm(config.hidden_size)
        self.mlp: nn.Module = GatedMLP(config)

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
        self.norm = config.norm(config.hidden_size)
        self.rope = RotaryTable(config.rope, config.rotary_dim)
        self._ropes = [config.rope_of(layer) for layer in range(config.num_layers)]
        local = next((rope for rope in self._ropes if rope != config.rope), None)
        self.local_rope = None if local is None else RotaryTable(local, config.rotary_dim)
        self._factor = config.factors.embedding

    def forward(self, step: Step) -> torch.Tensor:
        x = self.embed_tokens(step)
        if self._factor is not None:
            x = ops.scale(x, self._factor)
        local = self.local_rope
        for layer, rope in zip(self.layers, self._ropes, strict=True):
            x = layer(x, step, self.rope.table if local is None or rope != local.rope else local.table)
        return self.norm(ops.select_rows(x, step))  # type: ignore[no-any-return]


class CausalLM(nn.Module):
    """A step in, logits float32 [logits, vocab] out.

    `layers` are called as `DecoderLayer` is; None: they are those. `decoder` takes the place of all between ids and the
    last norm.
    """

    def __init__(
        self, config: DecoderConfig, layers: Iterable[nn.Module] | None = None, decoder: Decoder | None = None
    ) -> None:
        super().__init__()
        self.config = config
        self.model = decoder or Decoder(config, layers)
        tied = self.model.embed_tokens.weight if config.tie_word_embeddings else None
        self.lm_head = LMHead(config.hidden_size, config.vocab_size, tied_to=tied)

    def forward(self, step: Step) -> torch.Tensor:
        factors = self.config.factors
        x = self.model(step)
        if factors.head is not None:
            x = ops.scale(x, factors.head)
        logits: torch.Tensor = self.lm_head(x)
        return logits if factors.logit_cap is None else ops.cap_logits(logits, factors.logit_cap)


__all__ = ["CausalLM", "Decoder", "DecoderLayer"]
