"""Qwen3-Next: mixtures of experts, three of four layers Gated DeltaNet, the others gated attention."""

from __future__ import annotations

from itertools import chain

from anychip.models.decoder_config import DecoderDefaults
from anychip.models.families.qwen3_moe import SparseQwenConfig
from anychip.models.hybrid import SparseHybridConfig
from anychip.models.layouts import grouped_rows
from anychip.models.mixture import Mixture, Routing
from anychip.models.mixture_config import count
from anychip.models.raw import Fields
from anychip.models.rope_config import RopeDefaults
from anychip.models.source import Source


class Qwen3NextConfig(SparseHybridConfig, SparseQwenConfig):
    """Heads are 256 wide unless the config says otherwise, a quarter of each turned."""

    architectures = ("Qwen3NextForCausalLM",)
    model_type = "qwen3_next"
    defaults = DecoderDefaults(
        vocab_size=151936,
        hidden_size=2048,
        intermediate_size=5632,
        max_positions=32768,
        num_layers=48,
        num_heads=16,
        num_kv_heads=2,
        head_dim=256,
        qk_norm=True,
        rope=RopeDefaults(partial=0.25),
    )

    @classmethod
    def read_mixture(cls, fields: Fields) -> Mixture:
        return Mixture(
            experts=count(fields, ("num_experts", "num_local_experts"), 512),
            per_token=count(fields, ("num_experts_per_tok",), 10),
            inner=fields.integer("moe_intermediate_size", 512),
            routing=Routing(renormalise="sum" if fields.boolean("norm_topk_prob", True) else "none"),
            shared_inner=fields.integer("shared_expert_intermediate_size", 512),
            is_shared_gated=True,
        )

    def sources(self, name: str, shape: tuple[int, ...]) -> tuple[Source, ...]:
        """A key head's rows, and those of its value heads, follow each other."""
        delta, module = self.delta, name.split(".")[-2]
        values = delta.repeats * delta.value_dim
        sizes = {
            "in_proj_qkvz": (delta.key_dim, delta.key_dim, values, values),
            "in_proj_ba": (delta.repeats, delta.repeats),
        }.get(module)
        if sizes is None:
            return super().sources(name, shape)
        return tuple(chain(*grouped_rows(name, shape, sizes)))


__all__ = ["Qwen3NextConfig"]
