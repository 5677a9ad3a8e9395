"""Ministral 3, text: Mistral's layers, whose queries grow with their position."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from anychip.models.attention import Attention
from anychip.models.decoder import CausalLM, Decoder
from anychip.models.decoder_config import DecoderConfig, DecoderDefaults
from anychip.models.layer_windows import Windows, one_window
from anychip.models.mlp import GatedMLP
from anychip.models.raw import Fields
from anychip.models.rope import RotaryTable
from anychip_sdk import ops
from anychip_sdk.step import Step

#: where the config tells nothing of the rotation
_ROPE: Mapping[str, object] = {
    "rope_type": "yarn",
    "rope_theta": 1000000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}


@dataclass(frozen=True)
class Ministral3Config(DecoderConfig):
    """Queries are multiplied by 1 + `query_growth` * log(1 + floor(position / original positions)); no biases."""

    architectures = ("Ministral3ForCausalLM",)
    model_type = "ministral3"
    defaults = DecoderDefaults(
        vocab_size=131072,
        intermediate_size=14336,
        num_layers=34,
        num_kv_heads=8,
        head_dim=128,
        max_positions=262144,
        bos=1,
        eos=2,
        rms_norm_eps=1e-5,
        qkv_bias=False,
    )

    query_growth: float

    @classmethod
    def read(cls, fields: Fields, generation: Fields) -> dict[str, Any]:
        if "rope_parameters" not in fields and "rope_scaling" not in fields:
            told = {**fields.raw, "rope_parameters": _ROPE}
            fields = Fields(told, fields.problems, fields.where, fields.read)
        rope = fields.section("rope_parameters") or fields.section("rope_scaling")
        growth = 0.0 if rope is None else rope.number("llama_4_scaling_beta", 0.0, minimum=0, maximum=1e3)
        return {**super().read(fields, generation), "query_growth": growth}

    @classmethod
    def windows(cls, fields: Fields, num_layers: int) -> Windows:
        return one_window(fields, num_layers, None)

    def build(self) -> nn.Module:
        return CausalLM(self, decoder=Ministral3Decoder(self))


class QueryTable(RotaryTable):
    """A rotation that lets what it turns grow with its position."""

    def __init__(self, config: Ministral3Config) -> None:
        super().__init__(config.rope, config.rotary_dim)
        self._growth = config.query_growth
        self._original = config.rope.original_max_positions or config.max_positions

    def compute(self, positions: int) -> torch.Tensor:
        at = torch.arange(positions, dtype=torch.float32)
        factors = 1 + self._growth * torch.log(1 + torch.floor(at / self._original))
        return super().compute(positions) * factors.unsqueeze(1)


class Ministral3Attention(Attention):
    """Queries and keys turn by a table each, in two calls of which one result is used."""

    def forward(
        self, x: torch.Tensor, step: Step, table: torch.Tensor, query_table: torch.Tensor | None = None
    ) -> torch.Tensor:
        assert query_table is not None
        q, k, v = self.project(x)
        turned_q, _ = ops.rope(q, k, step, query_table)
        _, turned_k = ops.rope(q, k, step, table)
        return self.o_proj(self.mix(turned_q, turned_k, v, step))  # type: ignore[no-any-return]


class Ministral3Layer(nn.Module):
    """Pre-norm residual block."""

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        self.input_layernorm = config.norm(config.hidden_size)
        self.self_attn = Ministral3Attention(config, layer)
        self.post_attention_layernorm = config.norm(config.hidden_size)
        self.mlp = GatedMLP(config)

    def forward(self, x: torch.Tensor, step: Step, table: torch.Tensor, query_table: torch.Tensor) -> torch.Tensor:
        x = ops.add(self.self_attn(self.input_layernorm(x), step, table, query_table), x)
        return ops.add(self.mlp(self.post_attention_layernorm(x)), x)  # type: ignore[no-any-return]


class Ministral3Decoder(Decoder):
    def __init__(self, config: Ministral3Config) -> None:
        super().__init__(config, (Ministral3Layer(config, layer) for layer in range(config.num_layers)))
        self.query_rope = QueryTable(config)

    def forward(self, step: Step) -> torch.Tensor:
        x = self.embed_tokens(step)
        for layer in self.layers:
            x = layer(x, step, self.rope.table, self.query_rope.table)
        return self.norm(ops.select_rows(x, step))  # type: ignore[no-any-return]


__all__ = ["Ministral3Config"]
