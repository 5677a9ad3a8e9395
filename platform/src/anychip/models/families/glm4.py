"""GLM-4, dense: norms around attention and MLP, half of each head turned, neighbour against neighbour."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from anychip.models.attention import Attention
from anychip.models.decoder import CausalLM
from anychip.models.decoder_config import DecoderConfig, DecoderDefaults
from anychip.models.decoder_gguf import LAYER_TENSORS, TENSORS, read_decoder_config
from anychip.models.gguf_names import GGUFFields, GGUFNames
from anychip.models.layouts import fused_gate_up, unpaired
from anychip.models.mlp import GatedMLP
from anychip.models.raw import Fields
from anychip.models.rope_config import RopeDefaults
from anychip.models.source import Source
from anychip_sdk import ops
from anychip_sdk.step import Step

_GGUF_LAYER = {
    **LAYER_TENSORS,
    "post_attention_norm": "post_self_attn_layernorm",
    "post_ffw_norm": "post_mlp_layernorm",
    "ffn_up": "mlp.gate_up_proj",
}


def _read_gguf(fields: GGUFFields) -> dict[str, object]:
    return read_decoder_config(fields, is_partial=True)


class Glm4Config(DecoderConfig):
    """Norms before and behind each block; half of each head is turned; q, k and v have biases by default."""

    architectures = ("Glm4ForCausalLM",)
    model_type = "glm4"
    gguf = GGUFNames("glm4", _read_gguf, TENSORS, _GGUF_LAYER)
    defaults = DecoderDefaults(
        vocab_size=151552,
        intermediate_size=13696,
        num_layers=40,
        num_kv_heads=2,
        head_dim=128,
        max_positions=131072,
        eos=(151329, 151336, 151338),
        rms_norm_eps=1.5625e-7,
        rope=RopeDefaults(partial=0.5),
    )

    @classmethod
    def read(cls, fields: Fields, generation: Fields) -> dict[str, Any]:
        bias = fields.boolean("attention_bias", True)
        return {**super().read(fields, generation), "attention_bias": bias, "attention_out_bias": False}

    def sources(self, name: str, shape: tuple[int, ...]) -> tuple[Source, ...]:
        return fused_gate_up(self, name, shape) if ".mlp." in name else unpaired(self, name, shape)

    def build(self) -> nn.Module:
        return CausalLM(self, (Glm4Layer(self, layer) for layer in range(self.num_layers)))


class Glm4Layer(nn.Module):
    """Residual block with a norm before and one behind each part."""

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        self.input_layernorm = config.norm(config.hidden_size)
        self.self_attn = Attention(config, layer)
        self.post_self_attn_layernorm = config.norm(config.hidden_size)
        self.post_attention_layernorm = config.norm(config.hidden_size)
        self.mlp = GatedMLP(config)
        self.post_mlp_layernorm = config.norm(config.hidden_size)

    def forward(self, x: torch.Tensor, step: Step, table: torch.Tensor) -> torch.Tensor:
        attended = self.self_attn(self.input_layernorm(x), step, table)
        x = ops.add(self.post_self_attn_layernorm(attended), x)
        mixed = self.mlp(self.post_attention_layernorm(x))
        return ops.add(self.post_mlp_layernorm(mixed), x)  # type: ignore[no-any-return]


__all__ = ["Glm4Config"]
