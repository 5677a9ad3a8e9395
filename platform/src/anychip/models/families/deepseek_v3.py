"""DeepSeek-V3 and R1, and Kimi-K2: latent attention, experts by sigmoid in groups, chosen with a correction."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import nn

from anychip.models.decoder import CausalLM
from anychip.models.decoder_config import DecoderDefaults
from anychip.models.experts import mixed_layers
from anychip.models.latent import LatentLayer
from anychip.models.latent_config import LatentConfig
from anychip.models.mixture import ExpertNames, Mixture, Routing
from anychip.models.mixture_config import MixtureConfig, count
from anychip.models.raw import Fields

LARGEST = 1e6  #: that the experts' factor may be
_LAYER = re.compile(r"^model\.layers\.(\d+)\.")


class ExpertDefaults(NamedTuple):
    """What a class takes for granted of its experts."""

    experts: int = 256
    per_token: int = 8
    inner: int = 2048
    groups: int = 8
    top_groups: int = 4
    factor: float = 2.5


@dataclass(frozen=True)
class DeepseekV3Config(LatentConfig, MixtureConfig):
    """`predicted`: layers behind the model's own that predict further tokens and are not read."""

    architectures = ("DeepseekV3ForCausalLM",)
    model_type = "deepseek_v3"
    defaults = DecoderDefaults(
        vocab_size=129280,
        hidden_size=7168,
        intermediate_size=18432,
        num_layers=61,
        num_heads=128,
        max_positions=4096,
        head_dim=64,
        bos=0,
        eos=1,
    )
    expert_defaults = ExpertDefaults()
    expert_names = ExpertNames(
        renamed=(("gate.selection_bias", "mlp.gate.e_score_correction_bias"), ("shared_expert.", "mlp.shared_experts."))
    )

    predicted: int
    whole_layers: int

    @classmethod
    def read(cls, fields: Fields, generation: Fields) -> dict[str, Any]:
        known = super().read(fields, generation)
        predicted = fields.integer("num_nextn_predict_layers", 1, minimum=0)
        return {**known, "predicted": predicted, "whole_layers": known["num_layers"]}

    @classmethod
    def read_mixture(cls, fields: Fields) -> Mixture:
        known = cls.expert_defaults
        expect(fields, "scoring_func", "sigmoid")
        expect(fields, "topk_method", "noaux_tc")
        routing = Routing(
            score="sigmoid",
            renormalise="sum" if fields.boolean("norm_topk_prob", True) else "none",
            groups=count(fields, ("n_group",), known.groups),
            top_groups=count(fields, ("topk_group",), known.top_groups),
            group_score="sum2",
            floor=1e-20,
            factor=fields.number("routed_scaling_factor", known.factor, above=0, maximum=LARGEST),
        )
        inner = fields.integer("moe_intermediate_size", known.inner)
        return Mixture(
            experts=count(fields, ("n_routed_experts", "num_local_experts"), known.experts),
            per_token=count(fields, ("num_experts_per_tok",), known.per_token),
            inner=inner,
            routing=routing,
            shared_inner=inner * count(fields, ("n_shared_experts",), 1, minimum=0),
            has_selection_bias=True,
        )

    @classmethod
    def read_sparse(cls, fields: Fields, num_layers: int) -> tuple[bool, ...]:
        return sparse_behind(fields, num_layers, 3)

    def ignores(self, tensor: str) -> bool:
        match = _LAYER.match(tensor)
        is_behind = match is not None and 0 <= int(match[1]) - self.whole_layers < self.predicted
        return is_behind or super().ignores(tensor)

    def build(self) -> nn.Module:
        return CausalLM(self, mixed_layers(self, LatentLayer))


class KimiK2Config(DeepseekV3Config):
    """Kimi-K2 where only its own name is told; its checkpoints name DeepSeek-V3's class."""

    architectures = ("KimiK2ForCausalLM",)
    model_type = "kimi_k2"


def expect(fields: Fields, key: str, value: str) -> None:
    """Refuse any other value of a key."""
    if fields.string(key, value) != value:
        fields.complain(key, value)


def sparse_behind(fields: Fields, num_layers: int, default: int) -> tuple[bool, ...]:
    """All layers behind the first dense ones are mixtures."""
    dense = fields.integer("first_k_dense_replace", default, minimum=0)
    if fields.integer("moe_layer_freq", 1) != 1:
        fields.complain("moe_layer_freq", "1")
    return tuple(layer >= dense for layer in range(num_layers))


__all__ = ["LARGEST", "DeepseekV3Config", "ExpertDefaults", "KimiK2Config", "expect", "sparse_behind"]
