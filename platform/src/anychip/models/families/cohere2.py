"""Command R7B and A: attention and MLP read one layer norm side by side; layers with a window turn, others don't."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from anychip.models.attention import Attention
from anychip.models.decoder import CausalLM
from anychip.models.decoder_config import AttentionTraits, DecoderConfig, DecoderDefaults, Factors
from anychip.models.decoder_gguf import LAYER_TENSORS, TENSORS, read_decoder_config
from anychip.models.gguf_names import GGUFFields, GGUFNames
from anychip.models.layer_windows import Windows, parse_windows
from anychip.models.layers import LayerNorm
from anychip.models.layouts import unpaired
from anychip.models.mlp import GatedMLP
from anychip.models.raw import Fields
from anychip.models.source import Source
from anychip_sdk import ops
from anychip_sdk.step import Step


def _read_gguf(fields: GGUFFields) -> dict[str, object]:
    numbers = {"logit_scale": "logit_scale", "attention.layer_norm_epsilon": "layer_norm_eps"}
    return read_decoder_config(fields, numbers, has_window=True)


@dataclass(frozen=True)
class Cohere2Config(DecoderConfig):
    """Attention and MLP side by side behind one layer norm; three of four layers have a window, and only these turn."""

    architectures = ("Cohere2ForCausalLM",)
    model_type = "cohere2"
    gguf = GGUFNames("cohere2", _read_gguf, TENSORS, LAYER_TENSORS)
    defaults = DecoderDefaults(
        vocab_size=256000,
        hidden_size=8192,
        intermediate_size=22528,
        num_layers=40,
        num_heads=64,
        max_positions=8192,
        bos=5,
        eos=255001,
        is_tied=True,
    )

    fixed: ClassVar[Mapping[str, Sequence[object]]] = {
        "order_of_interleaved_layers": ("local_attn_first",),
        "position_embedding_type": ("rope_gptj", "rope"),
        "use_embedding_sharing": (True,),
        "use_gated_activation": (True,),
        "use_parallel_block": (True,),
    }
    unused = frozenset({"layer_switch", "use_parallel_embedding"})

    logit_scale: float

    @classmethod
    def read(cls, fields: Fields, generation: Fields) -> dict[str, Any]:
        own = {
            "logit_scale": fields.number("logit_scale", 0.0625, above=0, maximum=1e6),
            "rms_norm_eps": fields.number("layer_norm_eps", 1e-5, above=0, maximum=1),
        }
        return {**super().read(fields, generation), **own}

    @classmethod
    def windows(cls, fields: Fields, num_layers: int) -> Windows:
        every = fields.integer("sliding_window_pattern", 4)
        return parse_windows(fields, num_layers, 4096, lambda layer: (layer + 1) % every != 0)

    def attention(self, layer: int) -> AttentionTraits:
        return super().attention(layer)._replace(is_turned=self.window(layer) is not None)

    def norm(self, size: int) -> LayerNorm:
        return LayerNorm(size, self.rms_norm_eps)

    @property
    def factors(self) -> Factors:
        return Factors(head=self.logit_scale)

    def sources(self, name: str, shape: tuple[int, ...]) -> tuple[Source, ...]:
        """Of layers that turn nothing too: the order of a head's dimensions doesn't matter there."""
        return unpaired(self, name, shape)

    def build(self) -> nn.Module:
        return CausalLM(self, (Cohere2Layer(self, layer) for layer in range(self.num_layers)))


class Cohere2Layer(nn.Module):
    """Residual block whose parts are added to the sum at once."""

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        self.input_layernorm = config.norm(config.hidden_size)
        self.self_attn = Attention(config, layer)
        self.mlp = GatedMLP(config)

    def forward(self, x: torch.Tensor, step: Step, table: torch.Tensor) -> torch.Tensor:
        normed = self.input_layernorm(x)
        attended = ops.add(self.self_attn(normed, step, table), x)
        return ops.add(self.mlp(normed), attended)  # type: ignore[no-any-return]


__all__ = ["Cohere2Config"]
