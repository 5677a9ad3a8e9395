"""Qwen3-Next: three of four layers Gated DeltaNet, the others gated attention. Its dense layers alone."""

from __future__ import annotations

from itertools import chain
from typing import Any

from torch import nn

from anychip.models.decoder_config import DecoderDefaults
from anychip.models.hybrid import HybridConfig
from anychip.models.layouts import grouped_rows
from anychip.models.mlp import GatedMLP
from anychip.models.raw import Fields
from anychip.models.rope_config import RopeDefaults
from anychip.models.source import Source


class Qwen3NextConfig(HybridConfig):
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
    def read(cls, fields: Fields, generation: Fields) -> dict[str, Any]:
        values = super().read(fields, generation)
        dense = fields.numbers("mlp_only_layers", above=-1) or ()
        every, experts = fields.integer("decoder_sparse_step", 1), fields.integer("num_experts", 512, minimum=0)
        sparse = [at for at in range(values["num_layers"]) if at not in dense and (at + 1) % every == 0]
        fields.settle("norm_topk_prob")
        if experts and sparse:
            fields.problems.append(f"{fields.where}: {len(sparse)} layers have experts, which are not supported")
        return values

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

    def build(self) -> nn.Module:
        return self.build_with(lambda layer: GatedMLP(self))


__all__ = ["Qwen3NextConfig"]
