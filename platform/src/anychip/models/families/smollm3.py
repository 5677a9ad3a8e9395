"""SmolLM3: Llama's layers, some of which turn no queries and keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from torch import nn

from anychip.models.decoder import CausalLM
from anychip.models.decoder_config import AttentionTraits, DecoderConfig, DecoderDefaults
from anychip.models.decoder_gguf import INTERLEAVED, LAYER_TENSORS, TENSORS, read_decoder_config
from anychip.models.gguf_names import GGUFNames
from anychip.models.layer_windows import Windows, no_windows, parse_windows
from anychip.models.raw import Fields
from anychip.models.rope_config import RopeDefaults

Self = TypeVar("Self", bound="SmolLM3Config")


@dataclass(frozen=True)
class SmolLM3Config(DecoderConfig):
    """Every fourth layer turns no queries and keys, or those that the config names; windows where it says so."""

    architectures = ("SmolLM3ForCausalLM",)
    model_type = "smollm3"
    gguf = GGUFNames("smollm3", read_decoder_config, TENSORS, LAYER_TENSORS, interleaved=INTERLEAVED)
    defaults = DecoderDefaults(
        vocab_size=128256,
        hidden_size=2048,
        intermediate_size=11008,
        num_layers=36,
        num_heads=16,
        num_kv_heads=4,
        max_positions=32768,
        bos=128000,
        eos=128001,
        is_tied=True,
        rope=RopeDefaults(theta=2000000.0),
        reads_mlp_bias=True,
    )

    is_turned: tuple[bool, ...]

    @classmethod
    def read(cls, fields: Fields, generation: Fields) -> dict[str, Any]:
        values = super().read(fields, generation)
        return {**values, "is_turned": _turned(fields, values["num_layers"])}

    @classmethod
    def windows(cls, fields: Fields, num_layers: int) -> Windows:
        """None unless switched on, and then where nothing is turned."""
        fields.settle("sliding_window", "layer_types")
        if not fields.boolean("use_sliding_window", False):
            return no_windows(num_layers)
        turned = _turned(
            Fields(fields.raw, [], fields.where, fields.read), num_layers
        )  # what is wrong is told once, by `read`
        return parse_windows(fields, num_layers, None, lambda layer: not turned[layer])

    def attention(self, layer: int) -> AttentionTraits:
        return super().attention(layer)._replace(is_turned=self.is_turned[layer])

    def pick(self: Self, layers: Sequence[int]) -> Self:
        return replace(super().pick(layers), is_turned=tuple(self.is_turned[layer] for layer in layers))

    def build(self) -> nn.Module:
        return CausalLM(self)


def _turned(fields: Fields, num_layers: int) -> tuple[bool, ...]:
    """Whether each layer turns queries and keys: `no_rope_layers` has a 1 where it does, whatever its name says."""
    interval = fields.integer("no_rope_layer_interval", 4)
    found = fields.numbers("no_rope_layers", above=-1, maximum=1)
    if found is None:
        return tuple((layer + 1) % interval != 0 for layer in range(num_layers))
    if len(found) != num_layers:
        fields.problems.append(f"{fields.where}: no_rope_layers has {len(found)} entries for {num_layers} layers")
        return (True,) * num_layers
    return tuple(bool(one) for one in found)


__all__ = ["SmolLM3Config"]
