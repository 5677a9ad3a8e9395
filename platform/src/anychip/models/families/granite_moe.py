"""Granite, mixtures of experts."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from anychip.models.decoder import CausalLM
from anychip.models.decoder_config import DecoderDefaults
from anychip.models.experts import mixed_layers
from anychip.models.families.granite import GraniteConfig, GraniteLayer
from anychip.models.mixture import ExpertNames, Mixture, Routing, Stacks
from anychip.models.mixture_config import MixtureConfig, count
from anychip.models.raw import Fields


@dataclass(frozen=True)
class GraniteMoeConfig(MixtureConfig, GraniteConfig):
    """Experts are chosen by logits, and weighed by the softmax of those that were chosen."""

    architectures = ("GraniteMoeForCausalLM",)
    model_type = "granitemoe"
    gguf = None
    defaults = DecoderDefaults(
        vocab_size=32000, intermediate_size=11008, max_positions=2048, bos=1, eos=2, qkv_bias=None
    )
    expert_names = ExpertNames(
        expert=None,
        stacks=Stacks("block_sparse_moe.input_linear.weight", "block_sparse_moe.output_linear.weight"),
        renamed=(("gate.", "block_sparse_moe.router.layer."),),
    )

    @classmethod
    def read_mixture(cls, fields: Fields) -> Mixture:
        return Mixture(
            experts=count(fields, ("num_local_experts", "num_experts"), 8),
            per_token=count(fields, ("num_experts_per_tok",), 2),
            inner=fields.integer("intermediate_size", 11008),
            routing=Routing(score="logits", renormalise="softmax"),
        )

    def build(self) -> nn.Module:
        return CausalLM(self, mixed_layers(self, GraniteLayer))


__all__ = ["GraniteMoeConfig"]
