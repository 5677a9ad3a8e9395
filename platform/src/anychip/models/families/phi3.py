"""Phi-3, Phi-3.5 and Phi-4, dense: Llama's layers, saved with joined projections."""

from __future__ import annotations

from torch import nn

from anychip.models.decoder import CausalLM
from anychip.models.decoder_config import DecoderConfig, DecoderDefaults
from anychip.models.decoder_gguf import LAYER_TENSORS, TENSORS, read_decoder_config
from anychip.models.gguf_names import GGUFFields, GGUFNames
from anychip.models.layer_windows import Windows, one_window
from anychip.models.layouts import fused_gate_up, fused_qkv
from anychip.models.raw import Fields
from anychip.models.rope_config import RopeDefaults
from anychip.models.source import Source

_GGUF_LAYER = {**LAYER_TENSORS, "attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}


def _read_gguf(fields: GGUFFields) -> dict[str, object]:
    """Lists of longrope stand in tensors, and are added where these are read."""
    raw = read_decoder_config(fields, is_partial=True, has_window=True)
    original, factor = fields.integer("rope.scaling.original_context_length"), fields.number("rope.scaling.attn_factor")
    if original is not None:
        raw["original_max_position_embeddings"] = original
    if factor is not None:
        raw["rope_scaling"] = {"attention_factor": factor}
    return raw


class Phi3Config(DecoderConfig):
    """Joined projections without biases; longrope, and a part of each head turned, where the config says so."""

    architectures = ("Phi3ForCausalLM",)
    model_type = "phi3"
    gguf = GGUFNames("phi3", _read_gguf, TENSORS, _GGUF_LAYER)
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
