"""The gated MLP. Knows activations by name; knows no layer."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from anychip.models.config import ModelConfig
from anychip.models.layers import Linear
from anychip_sdk import ops
from anychip_sdk.ops import Op

ACTIVATIONS: Mapping[str, Op] = {"silu": ops.silu, "gelu_pytorch_tanh": ops.gelu}


class GatedMLP(nn.Module):
    """down(activation(gate(x)) * up(x)) (Shazeer, 2020)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        sizes = (config.hidden_size, config.intermediate_size)
        self.gate_proj = Linear(*sizes, bias=config.mlp_bias)
        self.up_proj = Linear(*sizes, bias=config.mlp_bias)
        self.down_proj = Linear(*sizes[::-1], bias=config.mlp_bias)
        self.activation = ACTIVATIONS[config.hidden_act]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gated = ops.mul(self.activation(self.gate_proj(x)), self.up_proj(x))
        return self.down_proj(gated)  # type: ignore[no-any-return]


__all__ = ["ACTIVATIONS", "GatedMLP"]
