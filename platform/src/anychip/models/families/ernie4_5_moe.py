"""Ernie 4.5, mixtures of experts: softmax with a bias for the choice; a file turns neighbours of a head."""

from __future__ import annotations

from types import MappingProxyType

from torch import nn

from anychip.models.decoder import CausalLM
from anychip.models.decoder_config import DecoderDefaults
from anychip.models.experts import mixed_layers
from anychip.models.layouts import unpaired
from anychip.models.mixture import ExpertNames, Mixture, Routing
from anychip.models.mixture_config import MixtureConfig, count
from anychip.models.raw import Fields
from anychip.models.rope_config import RopeDefaults
from anychip.models.source import Source


class Ernie4_5MoeConfig(MixtureConfig):
    """Biases of all projections where `use_bias` asks for them."""

    architectures = ("Ernie4_5_MoeForCausalLM",)
    model_type = "ernie4_5_moe"
    defaults = DecoderDefaults(
        vocab_size=103424,
        hidden_size=2560,
        intermediate_size=12288,
        num_layers=28,
        num_heads=20,
        num_kv_heads=4,
        max_positions=131072,
        bos=1,
        eos=2,
        rms_norm_eps=1e-5,
        is_tied=True,
        rope=RopeDefaults(theta=500000.0),
        qkv_bias=False,
    )
    fixed = MappingProxyType({"use_bias": (False,)})
    expert_names = ExpertNames(
        renamed=(
            ("gate.selection_bias", "mlp.moe_statics.e_score_correction_bias"),
            ("shared_expert.", "mlp.shared_experts."),
        )
    )

    @classmethod
    def read_mixture(cls, fields: Fields) -> Mixture:
        inner = fields.integer("moe_intermediate_size", 1536)
        floor = fields.number("moe_norm_min", 1e-12, minimum=0, maximum=1)
        return Mixture(
            experts=count(fields, ("moe_num_experts", "num_experts", "num_local_experts"), 64),
            per_token=count(fields, ("moe_k", "num_experts_per_tok"), 6),
            inner=inner,
            routing=Routing(renormalise="max", floor=floor),
            shared_inner=inner * count(fields, ("moe_num_shared_experts",), 2, minimum=0),
            has_selection_bias=True,
        )

    @classmethod
    def read_sparse(cls, fields: Fields, num_layers: int) -> tuple[bool, ...]:
        first = fields.integer("moe_layer_start_index", 1, minimum=0)
        last = fields.integer("moe_layer_end_index", 27, minimum=-1)
        last = num_layers - 1 if last == -1 else last
        every = fields.integer("moe_layer_interval", 1)
        return tuple((layer + 1) % every == 0 and first <= layer <= last for layer in range(num_layers))

    def stored_shape(self, part: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (1, *shape) if part == "gate.selection_bias" else shape

    def sources(self, name: str, shape: tuple[int, ...]) -> tuple[Source, ...]:
        return super().sources(name, shape) if ".mlp." in name else unpaired(self, name, shape)

    def build(self) -> nn.Module:
        return CausalLM(self, mixed_layers(self))


__all__ = ["Ernie4_5MoeConfig"]
