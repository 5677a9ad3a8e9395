"""Mixtral: Mistral's layers with mixtures of experts."""

from __future__ import annotations

from torch import nn

from anychip.models.decoder import CausalLM
from anychip.models.decoder_config import DecoderDefaults
from anychip.models.experts import mixed_layers
from anychip.models.layer_windows import Windows, one_window
from anychip.models.mixture import ExpertNames, Mixture, Routing
from anychip.models.mixture_config import MixtureConfig, count
from anychip.models.raw import Fields
from anychip.models.rope_config import RopeDefaults


class MixtralConfig(MixtureConfig):
    """Weights of the chosen experts add up to 1."""

    architectures = ("MixtralForCausalLM",)
    model_type = "mixtral"
    defaults = DecoderDefaults(
        vocab_size=32000,
        intermediate_size=14336,
        num_kv_heads=8,
        max_positions=131072,
        bos=1,
        eos=2,
        rms_norm_eps=1e-5,
        rope=RopeDefaults(theta=1e6),
        qkv_bias=False,
    )
    expert_names = ExpertNames(
        expert="block_sparse_moe.experts.{expert}.{part}.weight",
        parts=("w1", "w3", "w2"),
        renamed=(("gate.", "block_sparse_moe.gate."),),
    )

    @classmethod
    def windows(cls, fields: Fields, num_layers: int) -> Windows:
        return one_window(fields, num_layers, None)

    @classmethod
    def read_mixture(cls, fields: Fields) -> Mixture:
        return Mixture(
            experts=count(fields, ("num_local_experts", "num_experts"), 8),
            per_token=count(fields, ("num_experts_per_tok",), 2),
            inner=fields.integer("intermediate_size", 14336),
            routing=Routing(renormalise="sum"),
        )

    def build(self) -> nn.Module:
        return CausalLM(self, mixed_layers(self))


__all__ = ["MixtralConfig"]
