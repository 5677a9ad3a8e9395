"""Granite: Llama's layers, with numbers that embeddings, residual sums, scores and logits are multiplied by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from anychip.models.decoder import CausalLM, DecoderLayer
from anychip.models.decoder_config import AttentionTraits, DecoderConfig, DecoderDefaults, Factors
from anychip.models.decoder_gguf import INTERLEAVED, LAYER_TENSORS, TENSORS, read_decoder_config
from anychip.models.gguf_names import GGUFFields, GGUFNames
from anychip.models.raw import Fields
from anychip_sdk import ops
from anychip_sdk.step import Step

LARGEST = 1e6  #: that any of the factors may be


def _read_gguf(fields: GGUFFields) -> dict[str, object]:
    numbers = {
        "attention.scale": "attention_multiplier",
        "embedding_scale": "embedding_multiplier",
        "residual_scale": "residual_multiplier",
        "logit_scale": "logits_scaling",
    }
    return read_decoder_config(fields, numbers)


@dataclass(frozen=True)
class GraniteConfig(DecoderConfig):
    """Embeddings, what joins the residual sum, scores and logits are multiplied by numbers of the config."""

    architectures = ("GraniteForCausalLM",)
    model_type = "granite"
    gguf: ClassVar[GGUFNames | None] = GGUFNames("granite", _read_gguf, TENSORS, LAYER_TENSORS, interleaved=INTERLEAVED)
    defaults = DecoderDefaults(
        vocab_size=32000, intermediate_size=11008, max_positions=2048, bos=1, eos=2, reads_mlp_bias=True
    )

    embedding_multiplier: float
    residual_multiplier: float
    attention_multiplier: float
    logits_scaling: float

    @classmethod
    def read(cls, fields: Fields, generation: Fields) -> dict[str, Any]:
        names = ("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling")
        factors = {name: fields.number(name, 1.0, above=0, maximum=LARGEST) for name in names}
        return {**super().read(fields, generation), **factors}

    def attention(self, layer: int) -> AttentionTraits:
        return super().attention(layer)._replace(scale=self.attention_multiplier)

    @property
    def factors(self) -> Factors:
        return Factors(embedding=self.embedding_multiplier, head=1.0 / self.logits_scaling)

    def build(self) -> nn.Module:
        return CausalLM(self, (GraniteLayer(self, layer) for layer in range(self.num_layers)))


class GraniteLayer(DecoderLayer):
    """What is added to the residual sum is multiplied by a number first."""

    def __init__(self, config: GraniteConfig, layer: int) -> None:
        super().__init__(config, layer)
        self.factor = config.residual_multiplier

    def forward(self, x: torch.Tensor, step: Step, table: torch.Tensor) -> torch.Tensor:
        attended = self.self_attn(self.input_layernorm(x), step, table)
        x = ops.add(ops.scale(attended, self.factor), x)
        return ops.add(ops.scale(self.mlp(self.post_attention_layernorm(x)), self.factor), x)  # type: ignore[no-any-return]


__all__ = ["GraniteConfig", "GraniteLayer"]
