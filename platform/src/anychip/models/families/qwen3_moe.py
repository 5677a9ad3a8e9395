"""Qwen3, mixtures of experts."""

from __future__ import annotations

from torch import nn

from anychip.models.decoder import CausalLM
from anychip.models.decoder_config import DecoderDefaults
from anychip.models.experts import mixed_layers
from anychip.models.mixture import Mixture, Routing
from anychip.models.mixture_config import MixtureConfig, count
from anychip.models.raw import Fields


class SparseQwenConfig(MixtureConfig):
    """Which layers are mixtures, in Qwen's keys."""

    @classmethod
    def read_sparse(cls, fields: Fields, num_layers: int) -> tuple[bool, ...]:
        every = fields.integer("decoder_sparse_step", 1)
        dense = fields.raw.get("mlp_only_layers") or []
        fields.settle("mlp_only_layers")
        if not isinstance(dense, list) or not all(isinstance(layer, int) for layer in dense):
            fields.complain("mlp_only_layers", "a list of layers")
            dense = []
        return tuple(layer not in dense and (layer + 1) % every == 0 for layer in range(num_layers))


class Qwen3MoeConfig(SparseQwenConfig):
    architectures = ("Qwen3MoeForCausalLM",)
    model_type = "qwen3_moe"
    defaults = DecoderDefaults(
        vocab_size=151936,
        hidden_size=2048,
        intermediate_size=6144,
        num_layers=24,
        max_positions=32768,
        num_kv_heads=4,
        has_windows=True,
        qk_norm=True,
    )

    @classmethod
    def read_mixture(cls, fields: Fields) -> Mixture:
        return Mixture(
            experts=count(fields, ("num_experts", "num_local_experts"), 128),
            per_token=count(fields, ("num_experts_per_tok",), 8),
            inner=fields.integer("moe_intermediate_size", 768),
            routing=Routing(renormalise="sum" if fields.boolean("norm_topk_prob", False) else "none"),
        )

    def build(self) -> nn.Module:
        return CausalLM(self, mixed_layers(self))


__all__ = ["Qwen3MoeConfig", "SparseQwenConfig"]
