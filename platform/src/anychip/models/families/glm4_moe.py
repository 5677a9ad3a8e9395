"""GLM-4.5 and GLM-4.6: experts by sigmoid in groups, a shared one, half of each head turned."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from torch import nn

from anychip.models.decoder import CausalLM
from anychip.models.decoder_config import DecoderDefaults
from anychip.models.experts import mixed_layers
from anychip.models.mixture import ExpertNames, Mixture, Routing
from anychip.models.mixture_config import MixtureConfig, count
from anychip.models.raw import Fields
from anychip.models.rope_config import RopeDefaults

_LAYER = re.compile(r"^model\.layers\.(\d+)\.")


@dataclass(frozen=True)
class Glm4MoeConfig(MixtureConfig):
    """`predicted`: layers behind the model's own that predict further tokens and are not read."""

    architectures = ("Glm4MoeForCausalLM",)
    model_type = "glm4_moe"
    defaults = DecoderDefaults(
        vocab_size=151552,
        intermediate_size=10944,
        num_layers=46,
        num_heads=96,
        num_kv_heads=8,
        is_head_dim_rounded=True,
        max_positions=131072,
        rms_norm_eps=1e-5,
        rope=RopeDefaults(partial=0.5),
    )
    expert_names = ExpertNames(
        renamed=(("gate.selection_bias", "mlp.gate.e_score_correction_bias"), ("shared_expert.", "mlp.shared_experts."))
    )

    predicted: int
    whole_layers: int

    @classmethod
    def read(cls, fields: Fields, generation: Fields) -> dict[str, Any]:
        known = super().read(fields, generation)
        predicted = fields.integer("num_nextn_predict_layers", 0, minimum=0)
        own = {
            "attention_out_bias": False,
            "qk_norm": fields.boolean("use_qk_norm", False),
            "predicted": predicted,
            "whole_layers": known["num_layers"],
        }
        return {**known, **own}

    @classmethod
    def read_mixture(cls, fields: Fields) -> Mixture:
        inner = fields.integer("moe_intermediate_size", 1408)
        return Mixture(
            experts=count(fields, ("n_routed_experts", "num_local_experts"), 128),
            per_token=count(fields, ("num_experts_per_tok",), 8),
            inner=inner,
            routing=Routing(
                score="sigmoid",
                renormalise="sum" if fields.boolean("norm_topk_prob", True) else "none",
                groups=count(fields, ("n_group",), 1),
                top_groups=count(fields, ("topk_group",), 1),
                group_score="sum2",
                floor=1e-20,
                factor=fields.number("routed_scaling_factor", 1.0, above=0, maximum=1e6),
            ),
            shared_inner=inner * count(fields, ("n_shared_experts",), 1, minimum=0),
            has_selection_bias=True,
        )

    @classmethod
    def read_sparse(cls, fields: Fields, num_layers: int) -> tuple[bool, ...]:
        dense = fields.integer("first_k_dense_replace", 1, minimum=0)
        return tuple(layer >= dense for layer in range(num_layers))

    def ignores(self, tensor: str) -> bool:
        match = _LAYER.match(tensor)
        is_behind = match is not None and 0 <= int(match[1]) - self.whole_layers < self.predicted
        return is_behind or super().ignores(tensor)

    def build(self) -> nn.Module:
        return CausalLM(self, mixed_layers(self))


__all__ = ["Glm4MoeConfig"]
