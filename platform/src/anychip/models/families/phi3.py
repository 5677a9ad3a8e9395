"""Phi-3, Phi-3.5 and Phi-4, dense: Llama's layers, saved with joined projections."""

from __future__ import annotations

from torch import nn

from anychip.models.decoder import CausalLM
from anychip.models.decoder_config import DecoderConfig, DecoderDefaults
from anychip.models.layer_windows import Windows, one_window
from anychip.models.layouts import fused_gate_up, fused_qkv
from anychip.models.raw import Fields
from anychip.models.rope_config import RopeDefaults
from anychip.models.source import Source


class Phi3Config(DecoderConfig):
    """No biases; positions by longrope, a part of each head turned where the config says so."""

    architectures = ("Phi3ForCausalLM",)
    model_type = "phi3"
    defaults = DecoderDefaults(
        vocab_size=32064,
        hidden_size=3072,
        intermediate_size=8192,
        max_positions=4096,
        bos=1,
        eos=32000,
        rms_norm_eps=1e-5,
        rope=RopeDefaults(partial=1.0, original=4096),
        qkv_bias=False,
    )

    @classmethod
    def windows(cls, fields: Fields, num_layers: int) -> Windows:
        return one_window(fields, num_layers, None)

    def sources(self, name: str, shape: tuple[int, ...]) -> tuple[Source, ...]:
        return (fused_gate_up if ".mlp." in name else fused_qkv)(self, name, shape)

    def build(self) -> nn.Module:
        return CausalLM(self)


__all__ = ["Phi3Config"]
