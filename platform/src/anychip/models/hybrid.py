"""Decoders in which most layers keep a state of fixed size, and some see all tokens. Knows layers; knows no file."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from anychip.models.attention import Attention
from anychip.models.decoder import CausalLM
from anychip.models.decoder_config import DecoderConfig
from anychip.models.experts import MixtureOfExperts
from anychip.models.gated_delta import DeltaShape, GatedDelta, parse_delta
from anychip.models.layer_windows import FULL_ATTENTION, Windows
from anychip.models.layers import Linear, Norm, OffsetRMSNorm
from anychip.models.layouts import grouped_rows
from anychip.models.mixture_config import MixtureConfig
from anychip.models.mlp import GatedMLP
from anychip.models.raw import Fields
from anychip.models.source import Source
from anychip_sdk import ops
from anychip_sdk.step import Step

LINEAR_ATTENTION = "linear_attention"


@dataclass(frozen=True)
class HybridConfig(DecoderConfig):
    """What Qwen3-Next and Qwen3.5 share: `layer_types` are linear and full attention, norms' weights distances from 1.

    By default every fourth layer sees all tokens. What predicts several tokens (`mtp.`) is in checkpoints and not read.
    """

    delta: DeltaShape

    @classmethod
    def read(cls, fields: Fields, generation: Fields) -> dict[str, Any]:
        return {**super().read(fields, generation), "delta": parse_delta(fields)}

    @classmethod
    def windows(cls, fields: Fields, num_layers: int) -> Windows:
        every = fields.integer("full_attention_interval", 4)
        types = fields.strings("layer_types")
        if types is None:
            types = tuple(LINEAR_ATTENTION if (at + 1) % every else FULL_ATTENTION for at in range(num_layers))
        if len(types) != num_layers:
            fields.problems.append(f"{fields.where}: layer_types has {len(types)} entries for {num_layers} layers")
        unknown = sorted(set(types) - {LINEAR_ATTENTION, FULL_ATTENTION})
        if unknown:
            fields.problems.append(f"{fields.where}: layer_types {', '.join(unknown)} are not supported")
        return None, types

    def norm(self, size: int) -> Norm:
        return OffsetRMSNorm(size, self.rms_norm_eps)

    def kind(self, layer: int) -> Hashable:
        return super().kind(layer), self.layer_types[layer]

    def facts(self) -> dict[str, int]:
        return {**super().facts(), **self.delta.facts()}

    def ignores(self, tensor: str) -> bool:
        return tensor.startswith("mtp.") or super().ignores(tensor)

    def sources(self, name: str, shape: tuple[int, ...]) -> tuple[Source, ...]:
        *path, module, kind = name.split(".")
        place = ".".join(path)
        if place.endswith(".self_attn") and module in ("q_proj", "gate"):  # each head's rows of both follow each other
            both = grouped_rows(f"{place}.q_proj.{kind}", (2 * shape[0], *shape[1:]), (self.head_dim,) * 2)
            return both[module == "gate"]
        if module == "conv1d":
            return (Source(name, (shape[0], 1, shape[1])),)
        return super().sources(name, shape)

    def mlp(self, layer: int) -> nn.Module:
        """What a layer has behind its attention."""
        return GatedMLP(self)

    def build(self) -> nn.Module:
        return CausalLM(self, (HybridLayer(self, layer) for layer in range(self.num_layers)))


@dataclass(frozen=True)
class SparseHybridConfig(HybridConfig, MixtureConfig):
    """Mixtures of experts behind attention of both kinds."""

    def mlp(self, layer: int) -> nn.Module:
        return MixtureOfExperts(self) if self.is_sparse[layer] else super().mlp(layer)


class GatedAttention(Attention):
    """The sigmoid of a projection of its own, number by number, decides how much of the mix goes on."""

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__(config, layer)
        self.gate = Linear(config.hidden_size, config.q_size, bias=config.attention_bias)

    def forward(self, x: torch.Tensor, step: Step, table: torch.Tensor) -> torch.Tensor:
        q, k, v = self.project(x)
        q, k = self.turn(q, k, step, table)
        return self.o_proj(ops.sigmoid_mul(self.gate(x), self.mix(q, k, v, step)))  # type: ignore[no-any-return]


class HybridLayer(nn.Module):
    """Pre-norm residual block: attention of either kind, then MLP."""

    def __init__(self, config: HybridConfig, layer: int) -> None:
        super().__init__()
        is_linear = config.layer_types[layer] == LINEAR_ATTENTION
        self.input_layernorm = config.norm(config.hidden_size)
        self.linear_attn = GatedDelta(config, config.delta) if is_linear else None
        self.self_attn = None if is_linear else GatedAttention(config, layer)
        self.post_attention_layernorm = config.norm(config.hidden_size)
        self.mlp = config.mlp(layer)

    def forward(self, x: torch.Tensor, step: Step, table: torch.Tensor) -> torch.Tensor:
        normed = self.input_layernorm(x)
        mixed = self.self_attn(normed, step, table) if self.self_attn is not None else self._linear(normed, step)
        x = ops.add(mixed, x)
        return ops.add(self.mlp(self.post_attention_layernorm(x)), x)  # type: ignore[no-any-return]

    def _linear(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        assert self.linear_attn is not None
        return self.linear_attn(x, step)  # type: ignore[no-any-return]


__all__ = ["LINEAR_ATTENTION", "GatedAttention", "HybridConfig", "HybridLayer", "SparseHybridConfig"]
