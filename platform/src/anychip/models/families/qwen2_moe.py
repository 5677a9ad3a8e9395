"""Qwen1.5 and Qwen2, mixtures of experts with a gated shared one."""

from __future__ import annotations

from types import MappingProxyType

from torch import nn

from anychip.models.decoder import CausalLM
from anychip.models.decoder_config import DecoderDefaults
from anychip.models.experts import mixed_layers
from anychip.models.families.qwen3_moe import SparseQwenConfig
from anychip.models.mixture import Mixture, Routing
from anychip.models.mixture_config import count
from anychip.models.raw import Fields


class Qwen2MoeConfig(SparseQwenConfig):
    """Queries, keys and values have biases unless `qkv_bias` says otherwise."""

    architectures = ("Qwen2MoeForCausalLM",)
    model_type = "qwen2_moe"
    fixed = MappingProxyType({"qkv_bias": (True,)})
    defaults = DecoderDefaults(
        vocab_size=151936,
        hidden_size=2048,
        intermediate_size=5632,
        num_layers=24,
        num_heads=16,
        num_kv_heads=16,
        max_positions=32768,
        has_windows=True,
        qkv_bias=True,
    )

    @classmethod
    def read_mixture(cls, fields: Fields) -> Mixture:
        return Mixture(
            experts=count(fields, ("num_experts", "num_local_experts"), 60),
            per_token=count(fields, ("num_experts_per_tok",), 4),
            inner=fields.integer("moe_intermediate_size", 1408),
            routing=Routing(renormalise="sum" if fields.boolean("norm_topk_prob", False) else "none"),
            shared_inner=fields.integer("shared_expert_intermediate_size", 5632),
            is_shared_gated=True,
        )

    def build(self) -> nn.Module:
        return CausalLM(self, mixed_layers(self))


__all__ = ["Qwen2MoeConfig"]
