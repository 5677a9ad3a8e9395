"""Llama 1 to 3, and what is saved as such."""

from __future__ import annotations

from torch import nn

from anychip.models.decoder import CausalLM
from anychip.models.decoder_config import DecoderConfig, DecoderDefaults
from anychip.models.decoder_gguf import INTERLEAVED, LAYER_TENSORS, TENSORS, read_decoder_config
from anychip.models.gguf_names import GGUFNames


class LlamaConfig(DecoderConfig):
    """Biases where the config asks for them; no window."""

    architectures = ("LlamaForCausalLM",)
    model_type = "llama"
    gguf = GGUFNames("llama", read_decoder_config, TENSORS, LAYER_TENSORS, interleaved=INTERLEAVED)
    defaults = DecoderDefaults(
        vocab_size=32000, intermediate_size=11008, max_positions=2048, bos=1, eos=2, reads_mlp_bias=True
    )

    def build(self) -> nn.Module:
        return CausalLM(self)


__all__ = ["LlamaConfig"]
