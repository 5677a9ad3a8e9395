"""Hunyuan, mixtures of experts: queries and keys are normalised behind their rotation."""

from __future__ import annotations

import torch
from torch import nn

from anychip.models.attention import Attention
from anychip.models.decoder import CausalLM, DecoderLayer
from anychip.models.decoder_config import DecoderDefaults
from anychip.models.experts import mixed_layers
from anychip.models.mixture import ExpertNames, Mixture, Routing
from anychip.models.mixture_config import MixtureConfig, count
from anychip.models.raw import Fields
from anychip.models.source import Source
from anychip_sdk import ops
from anychip_sdk.step import Step

_NORMS = {"q_norm": "query_layernorm", "k_norm": "key_layernorm"}


class HunYuanMoeConfig(MixtureConfig):
    """All layers have as many experts; configs with a number for each layer are refused."""

    architectures = ("HunYuanMoEV1ForCausalLM",)
    model_type = "hunyuan_v1_moe"
    defaults = DecoderDefaults(
        vocab_size=290943, intermediate_size=11008, max_positions=2048, bos=1, eos=2, rms_norm_eps=1e-5, qk_norm=True
    )
    expert_names = ExpertNames(renamed=(("gate.", "mlp.gate.wg."), ("shared_expert.", "mlp.shared_mlp.")))

    @classmethod
    def read_mixture(cls, fields: Fields) -> Mixture:
        inner = fields.integer("intermediate_size", 11008)
        return Mixture(
            experts=count(fields, ("num_experts", "num_local_experts"), 1),
            per_token=count(fields, ("moe_topk",), 1),
            inner=inner,
            routing=Routing(renormalise="sum"),
            shared_inner=inner,
        )

    def sources(self, name: str, shape: tuple[int, ...]) -> tuple[Source, ...]:
        *path, module, kind = name.split(".")
        if module in _NORMS:
            return (Source(".".join((*path, _NORMS[module], kind)), shape),)
        return super().sources(name, shape)

    def build(self) -> nn.Module:
        return CausalLM(self, mixed_layers(self, HunYuanLayer))


class HunYuanAttention(Attention):
    def turn(
        self, q: torch.Tensor, k: torch.Tensor, step: Step, table: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        assert self.q_norm is not None
        assert self.k_norm is not None
        q, k = ops.rope(q, k, step, table)
        return self.q_norm(q), self.k_norm(k)


class HunYuanLayer(DecoderLayer):
    def __init__(self, config: MixtureConfig, layer: int) -> None:
        super().__init__(config, layer)
        self.self_attn = HunYuanAttention(config, layer)


__all__ = ["HunYuanAttention", "HunYuanLayer", "HunYuanMoeConfig"]
