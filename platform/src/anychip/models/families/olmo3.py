"""OLMo 3: OLMo 2's layers, three of four with a window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from anychip.models.decoder import CausalLM
from anychip.models.decoder_config import DecoderConfig, DecoderDefaults
from anychip.models.families.olmo2 import Olmo2Layer
from anychip.models.layer_windows import SLIDING_ATTENTION, Windows, parse_windows
from anychip.models.raw import Fields
from anychip.models.rope_config import RopeConfig, RopeDefaults, parse_local_rope


@dataclass(frozen=True)
class Olmo3Config(DecoderConfig):
    """OLMo 2's; three of four have a window, and a scaling of positions is for the others."""

    architectures = ("Olmo3ForCausalLM",)
    model_type = "olmo3"
    defaults = DecoderDefaults(
        vocab_size=50304,
        intermediate_size=11008,
        max_positions=2048,
        eos=50279,
        rms_norm_eps=1e-5,
        rope=RopeDefaults(theta=500000.0),
        has_local_rope=True,
    )

    local_rope: RopeConfig

    @classmethod
    def read(cls, fields: Fields, generation: Fields) -> dict[str, Any]:
        return {**super().read(fields, generation), "local_rope": parse_local_rope(fields, "rope_theta", 500000.0)}

    @classmethod
    def windows(cls, fields: Fields, num_layers: int) -> Windows:
        return parse_windows(fields, num_layers, 4096, lambda layer: (layer + 1) % 4 != 0)

    def rope_of(self, layer: int) -> RopeConfig:
        return self.local_rope if self.layer_types[layer] == SLIDING_ATTENTION else self.rope

    def build(self) -> nn.Module:
        return CausalLM(self, (Olmo2Layer(self, layer) for layer in range(self.num_layers)))


__all__ = ["Olmo3Config"]
