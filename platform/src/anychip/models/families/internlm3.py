"""InternLM3: Llama's layers, with names of its own for the switches of biases."""

from __future__ import annotations

from typing import Any

from torch import nn

from anychip.models.decoder import CausalLM
from anychip.models.decoder_config import DecoderConfig, DecoderDefaults
from anychip.models.raw import Fields


class InternLM3Config(DecoderConfig):
    """Biases where the config asks for them: `qkv_bias` for q, k and v, `bias` for all other products."""

    architectures = ("InternLM3ForCausalLM",)
    model_type = "internlm3"
    defaults = DecoderDefaults(
        vocab_size=128512,
        intermediate_size=10240,
        num_layers=48,
        num_kv_heads=2,
        head_dim=128,
        max_positions=32768,
        bos=1,
        eos=2,
        rms_norm_eps=1e-5,
    )

    @classmethod
    def read(cls, fields: Fields, generation: Fields) -> dict[str, Any]:
        own = fields.boolean("qkv_bias", fields.boolean("attention_bias", False))
        others = fields.boolean("bias", fields.boolean("mlp_bias", False))
        biases = {"attention_bias": own, "attention_out_bias": others, "mlp_bias": others}
        return {**super().read(fields, generation), **biases}

    def build(self) -> nn.Module:
        return CausalLM(self)


__all__ = ["InternLM3Config"]
