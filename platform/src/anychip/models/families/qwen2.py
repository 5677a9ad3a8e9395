"""Qwen2 and Qwen2.5, dense."""

from __future__ import annotations

from torch import nn

from anychip.models.decoder import CausalLM
from anychip.models.decoder_config import DecoderConfig, DecoderDefaults
from anychip.models.decoder_gguf import LAYER_TENSORS, TENSORS, read_decoder_config
from anychip.models.gguf_names import GGUFNames


class Qwen2Config(DecoderConfig):
    """Queries, keys and values have biases whatever the config says; windows where it switches them on."""

    architectures = ("Qwen2ForCausalLM",)
    model_type = "qwen2"
    gguf = GGUFNames("qwen2", read_decoder_config, TENSORS, LAYER_TENSORS)
    defaults = DecoderDefaults(
        vocab_size=151936,
        intermediate_size=22016,
        max_positions=32768,
        num_kv_heads=32,
        has_windows=True,
        qkv_bias=True,
    )

    def build(self) -> nn.Module:
        return CausalLM(self)


__all__ = ["Qwen2Config"]
