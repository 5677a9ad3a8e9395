"""DeepSeek-V2 and V2-Lite: latent attention, experts by softmax, in groups where the config says so."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from anychip.models.decoder import CausalLM
from anychip.models.decoder_config import DecoderDefaults
from anychip.models.experts import mixed_layers
from anychip.models.families.deepseek_v3 import LARGEST, expect, sparse_behind
from anychip.models.latent import LatentLayer
from anychip.models.latent_config import LatentConfig
from anychip.models.mixture import ExpertNames, Mixture, Routing
from anychip.models.mixture_config import MixtureConfig, count
from anychip.models.raw import Fields

TOPK_METHODS = ("greedy", "group_limited_greedy")


@dataclass(frozen=True)
class DeepseekV2Config(LatentConfig, MixtureConfig):
    """The chosen experts' weights are never made to sum to 1."""

    architectures = ("DeepseekV2ForCausalLM",)
    model_type = "deepseek_v2"
    defaults = DecoderDefaults(
        vocab_size=102400, intermediate_size=11008, max_positions=2048, head_dim=64, bos=1, eos=2, reads_mlp_bias=True
    )
    expert_names = ExpertNames(renamed=(("shared_expert.", "mlp.shared_experts."),))

    @classmethod
    def read_mixture(cls, fields: Fields) -> Mixture:
        expect(fields, "scoring_func", "softmax")
        if fields.boolean("norm_topk_prob", False):
            fields.complain("norm_topk_prob", "false")
        method = fields.string("topk_method", "greedy")
        if method not in TOPK_METHODS:
            fields.complain("topk_method", " or ".join(TOPK_METHODS))
        groups, top_groups = (count(fields, (key,), 1) for key in ("n_group", "topk_group"))
        is_grouped = method == TOPK_METHODS[1]
        routing = Routing(
            groups=groups if is_grouped else 1,
            top_groups=top_groups if is_grouped else 1,
            factor=fields.number("routed_scaling_factor", 1.0, above=0, maximum=LARGEST),
        )
        inner = fields.integer("moe_intermediate_size", 1407)
        return Mixture(
            experts=count(fields, ("n_routed_experts", "num_local_experts"), 64),
            per_token=count(fields, ("num_experts_per_tok",), 6),
            inner=inner,
            routing=routing,
            shared_inner=inner * count(fields, ("n_shared_experts",), 2, minimum=0),
        )

    @classmethod
    def read_sparse(cls, fields: Fields, num_layers: int) -> tuple[bool, ...]:
        return sparse_behind(fields, num_layers, 0)

    def build(self) -> nn.Module:
        return CausalLM(self, mixed_layers(self, LatentLayer))


__all__ = ["DeepseekV2Config"]
