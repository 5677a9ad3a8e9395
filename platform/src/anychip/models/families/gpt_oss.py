"""gpt-oss in 16 or 32 bits: sinks, windows in every other layer, clamped experts with biases."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from torch import nn

from anychip.models.decoder import CausalLM
from anychip.models.decoder_config import AttentionTraits, DecoderDefaults
from anychip.models.experts import mixed_layers
from anychip.models.layer_windows import Windows, parse_windows
from anychip.models.mixture import ExpertNames, Mixture, Routing, Stacks
from anychip.models.mixture_config import MixtureConfig, count
from anychip.models.raw import Fields
from anychip.models.rope_config import RopeDefaults


class GptOssConfig(MixtureConfig):
    """Its experts' stacks are [in, out], gate and up in turn. Those in MXFP4 are refused."""

    architectures = ("GptOssForCausalLM",)
    model_type = "gpt_oss"
    fixed = MappingProxyType({"swiglu_limit": (7.0,), "swiglu_alpha": (1.702,), "hidden_act": ("silu",)})
    defaults = DecoderDefaults(
        vocab_size=201088,
        hidden_size=2880,
        intermediate_size=2880,
        num_layers=36,
        num_heads=64,
        num_kv_heads=8,
        head_dim=64,
        max_positions=131072,
        rms_norm_eps=1e-5,
        rope=RopeDefaults(theta=150000.0),
    )
    expert_names = ExpertNames(
        expert=None,
        stacks=Stacks("mlp.experts.gate_up_proj", "mlp.experts.down_proj", is_turned=True),
        renamed=(("gate.", "mlp.router."),),
    )

    @classmethod
    def read(cls, fields: Fields, generation: Fields) -> dict[str, Any]:
        bias = fields.boolean("attention_bias", True)
        return {**super().read(fields, generation), "attention_bias": bias, "attention_out_bias": bias}

    @classmethod
    def windows(cls, fields: Fields, num_layers: int) -> Windows:
        return parse_windows(fields, num_layers, 128, lambda layer: layer % 2 == 0)

    def attention(self, layer: int) -> AttentionTraits:
        return super().attention(layer)._replace(has_sinks=True)

    @classmethod
    def read_mixture(cls, fields: Fields) -> Mixture:
        return Mixture(
            experts=count(fields, ("num_local_experts", "num_experts"), 128),
            per_token=count(fields, ("num_experts_per_tok", "experts_per_token"), 4),
            inner=fields.integer("intermediate_size", 2880),
            routing=Routing(score="logits", renormalise="softmax"),
            has_logit_bias=True,
            has_biases=True,
            activation="swiglu_clamped",
        )

    def build(self) -> nn.Module:
        return CausalLM(self, mixed_layers(self))


__all__ = ["GptOssConfig"]
