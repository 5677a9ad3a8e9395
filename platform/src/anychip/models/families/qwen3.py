"""Qwen3, dense."""

from __future__ import annotations

from torch import nn

from anychip.models.decoder import CausalLM
from anychip.models.decoder_config import DecoderConfig, DecoderDefaults
from anychip.models.decoder_gguf import LAYER_TENSORS, TENSORS, read_decoder_config
from anychip.models.gguf_names import GGUFNames


class Qwen3Config(DecoderConfig):
    """Queries and keys are normalised per head; heads are 128 wide unless the config says otherwise."""

    architectures = ("Qwen3ForCausalLM",)
    model_type = "qwen3"
    gguf = GGUFNames("qwen3", read_decoder_config, TENSORS, LAYER_TENSORS)
    defaults = DecoderDefaults(
        vocab_size=151936,
        intermediate_size=22016,
        max_positions=32768,
        num_kv_heads=32,
        head_dim=128,
        has_windows=True,
        qk_norm=True,
    )

    def build(self) -> nn.Module:
        return CausalLM(self)


__all__ = ["Qwen3Config"]
