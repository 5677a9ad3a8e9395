"""The gated MLP."""

from __future__ import annotations

import torch
from torch import nn

from anychip.models.decoder_config import DecoderConfig
from anychip.models.layers import ACTIVATIONS, Linear
from anychip_sdk import ops


class GatedMLP(nn.Module):
    """down(activation(gate(x)) * up(x)) (Shazeer, 2020)."""

    def __init__(self, config: DecoderConfig, inner: int | None = None) -> None:
        super().__init__()
        sizes = (config.hidden_size, inner or config.intermediate_size)
        self.gate_proj = Linear(*sizes, bias=config.mlp_bias)
        self.up_proj = Linear(*sizes, bias=config.mlp_bias)
        self.down_proj = Linear(*sizes[::-1], bias=config.mlp_bias)
        self.activation = ACTIVATIONS[config.hidden_act]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gated = ops.mul(self.activation(self.gate_proj(x)), self.up_proj(x))
        return self.down_proj(gated)  # type: ignore[no-any-return]


__all__ = ["GatedMLP"]
