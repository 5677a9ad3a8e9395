"""Mistral's dense models."""

from __future__ import annotations

from torch import nn

from anychip.models.decoder import CausalLM
from anychip.models.decoder_config import DecoderConfig, DecoderDefaults
from anychip.models.layer_windows import Windows, one_window
from anychip.models.raw import Fields


class MistralConfig(DecoderConfig):
    """No biases; every layer has the window, unless it is null. GGUF files call the family llama."""

    architectures = ("MistralForCausalLM",)
    model_type = "mistral"
    defaults = DecoderDefaults(
        vocab_size=32000,
        intermediate_size=14336,
        max_positions=131072,
        num_kv_heads=8,
        bos=1,
        eos=2,
        qkv_bias=False,
    )

    @classmethod
    def windows(cls, fields: Fields, num_layers: int) -> Windows:
        return one_window(fields, num_layers, 4096)

    def build(self) -> nn.Module:
        return CausalLM(self)


__all__ = ["MistralConfig"]
