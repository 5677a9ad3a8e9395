"""OLMoE: queries and keys are normalised over all their heads."""

from __future__ import annotations

from torch import nn

from anychip.models.decoder import CausalLM, DecoderLayer
from anychip.models.decoder_config import DecoderDefaults
from anychip.models.experts import mixed_layers
from anychip.models.families.olmo2 import Olmo2Attention
from anychip.models.mixture import Mixture, Routing
from anychip.models.mixture_config import MixtureConfig, count
from anychip.models.raw import Fields


class OlmoeConfig(MixtureConfig):
    architectures = ("OlmoeForCausalLM",)
    model_type = "olmoe"
    defaults = DecoderDefaults(
        vocab_size=50304,
        hidden_size=2048,
        intermediate_size=2048,
        num_layers=16,
        num_heads=16,
        num_kv_heads=16,
        max_positions=4096,
        eos=50279,
        rms_norm_eps=1e-5,
    )

    @classmethod
    def read_mixture(cls, fields: Fields) -> Mixture:
        return Mixture(
            experts=count(fields, ("num_experts", "num_local_experts"), 64),
            per_token=count(fields, ("num_experts_per_tok",), 8),
            inner=fields.integer("intermediate_size", 2048),
            routing=Routing(renormalise="sum" if fields.boolean("norm_topk_prob", False) else "none"),
        )

    def build(self) -> nn.Module:
        return CausalLM(self, mixed_layers(self, OlmoeLayer))


class OlmoeLayer(DecoderLayer):
    def __init__(self, config: MixtureConfig, layer: int) -> None:
        super().__init__(config, layer)
        self.self_attn = Olmo2Attention(config, layer)


__all__ = ["OlmoeConfig", "OlmoeLayer"]
