"""Gemma 3, text: Gemma 2's layers, queries and keys normalised, five of six with a window and their own rotation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from anychip.models.decoder_config import DecoderDefaults
from anychip.models.decoder_gguf import POST_NORMS, TENSORS
from anychip.models.families.gemma2 import GemmaConfig, read_gemma
from anychip.models.gguf_names import GGUFFields, GGUFNames
from anychip.models.layer_windows import SLIDING_ATTENTION, Windows, parse_windows
from anychip.models.raw import Fields
from anychip.models.rope_config import RopeConfig, RopeDefaults, parse_local_rope


def _read_gguf(fields: GGUFFields) -> dict[str, object]:
    local = fields.number("rope.freq_base_swa")
    return {**read_gemma(fields), "rope_local_base_freq": 10000.0 if local is None else local}


@dataclass(frozen=True)
class Gemma3Config(GemmaConfig):
    """Gemma 2's, queries and keys normalised per head; five of six have a window and turn by a base of their own."""

    architectures = ("Gemma3ForCausalLM",)
    model_type = "gemma3_text"
    gguf = GGUFNames("gemma3", _read_gguf, TENSORS, POST_NORMS, norm_shift=1.0)
    defaults = DecoderDefaults(
        vocab_size=262208,
        hidden_size=2304,
        intermediate_size=9216,
        num_layers=26,
        num_heads=8,
        num_kv_heads=4,
        head_dim=256,
        max_positions=131072,
        bos=2,
        eos=1,
        hidden_act=("hidden_activation", "gelu_pytorch_tanh"),
        is_tied=True,
        qk_norm=True,
        rope=RopeDefaults(theta=1000000.0),
        has_local_rope=True,
    )
    score_cap_default, logit_cap_default = None, None

    local_rope: RopeConfig

    @classmethod
    def read(cls, fields: Fields, generation: Fields) -> dict[str, Any]:
        local = parse_local_rope(fields, "rope_local_base_freq", 10000.0)
        return {**super().read(fields, generation), "local_rope": local}

    @classmethod
    def windows(cls, fields: Fields, num_layers: int) -> Windows:
        every = fields.integer("sliding_window_pattern", 6)
        return parse_windows(fields, num_layers, 4096, lambda layer: (layer + 1) % every != 0)

    def rope_of(self, layer: int) -> RopeConfig:
        return self.local_rope if self.layer_types[layer] == SLIDING_ATTENTION else self.rope


__all__ = ["Gemma3Config"]
