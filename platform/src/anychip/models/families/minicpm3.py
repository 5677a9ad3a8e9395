"""MiniCPM3: latent attention, and numbers that embeddings, residual sums and logits are multiplied by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from anychip.models.decoder import CausalLM
from anychip.models.decoder_config import DecoderDefaults, Factors
from anychip.models.latent import LatentLayer
from anychip.models.latent_config import LatentConfig, LatentDefaults
from anychip.models.raw import Fields
from anychip_sdk import ops
from anychip_sdk.step import Step

LARGEST = 1e6  #: that any of the factors may be


@dataclass(frozen=True)
class MiniCPM3Config(LatentConfig):
    """Residual sums get `residual` of what is added, logits are made of `head` times the last state."""

    architectures = ("MiniCPM3ForCausalLM",)
    model_type = "minicpm3"
    defaults = DecoderDefaults(
        vocab_size=73448,
        hidden_size=2560,
        intermediate_size=6400,
        num_layers=62,
        num_heads=40,
        max_positions=32768,
        head_dim=32,
        bos=1,
        eos=2,
        rms_norm_eps=1e-5,
        is_tied=True,
        reads_mlp_bias=True,
    )
    latent_defaults = LatentDefaults(768, 256, 32, 64, None, is_paired=False)

    embedding: float
    residual: float
    head: float

    @classmethod
    def read(cls, fields: Fields, generation: Fields) -> dict[str, Any]:
        found = super().read(fields, generation)
        depth: float = found["num_layers"] ** 0.5
        if "scale_depth" in fields or "scale_depth" not in fields.raw:  # null stands for no factor
            scale = fields.number("scale_depth", 1.4, above=0, maximum=LARGEST)
        else:
            scale = depth
        hidden: int = found["hidden_size"]
        base = fields.integer("dim_model_base", hidden if "dim_model_base" in fields.raw else 256)
        embedding = fields.number("scale_emb", 12.0, above=0, maximum=LARGEST)
        return {**found, "embedding": embedding, "residual": scale / depth, "head": base / hidden}

    @property
    def factors(self) -> Factors:
        return Factors(embedding=self.embedding, head=self.head)

    def build(self) -> nn.Module:
        return CausalLM(self, (MiniCPM3Layer(self, layer) for layer in range(self.num_layers)))


class MiniCPM3Layer(LatentLayer):
    """Residual sums get a part of what is added."""

    def __init__(self, config: MiniCPM3Config, layer: int) -> None:
        super().__init__(config, layer)
        self.factor = config.residual

    def forward(self, x: torch.Tensor, step: Step, table: torch.Tensor) -> torch.Tensor:
        attended = self.self_attn(self.input_layernorm(x), step, table)
        x = ops.add(ops.scale(attended, self.factor), x)
        return ops.add(ops.scale(self.mlp(self.post_attention_layernorm(x)), self.factor), x)  # type: ignore[no-any-return]


__all__ = ["MiniCPM3Config"]
