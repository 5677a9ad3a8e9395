"""Qwen3.5, mixtures of experts with a gated shared one: Qwen3.5's attention of both kinds. Text alone."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from anychip.models.decoder_config import DecoderDefaults
from anychip.models.families.qwen3_5 import Qwen35Base
from anychip.models.hybrid import SparseHybridConfig
from anychip.models.mixture import Mixture, Routing
from anychip.models.mixture_config import count
from anychip.models.raw import Fields
from anychip.models.rope_config import RopeDefaults


@dataclass(frozen=True)
class Qwen35MoeConfig(Qwen35Base, SparseHybridConfig):
    """The chosen experts' weights always sum to 1."""

    architectures = ("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration")
    model_type = "qwen3_5_moe_text"
    fixed = MappingProxyType({**Qwen35Base.fixed, "norm_topk_prob": (True,)})
    defaults = DecoderDefaults(
        vocab_size=248320,
        hidden_size=2048,
        intermediate_size=512,
        max_positions=32768,
        num_layers=40,
        num_heads=16,
        num_kv_heads=2,
        head_dim=256,
        qk_norm=True,
        rope=RopeDefaults(partial=0.25),
    )

    @classmethod
    def read_mixture(cls, fields: Fields) -> Mixture:
        return Mixture(
            experts=count(fields, ("num_experts", "num_local_experts"), 256),
            per_token=count(fields, ("num_experts_per_tok",), 8),
            inner=fields.integer("moe_intermediate_size", 512),
            routing=Routing(renormalise="sum"),
            shared_inner=fields.integer("shared_expert_intermediate_size", 512),
            is_shared_gated=True,
        )


__all__ = ["Qwen35MoeConfig"]
