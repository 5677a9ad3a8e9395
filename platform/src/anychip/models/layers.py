"""The smallest modules: a parameter and the catalogue op that uses it. Knows shapes; holds no weights (meta device)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from anychip_sdk import ops
from anychip_sdk.ops import Op
from anychip_sdk.step import Step

#: by the name that configs use
ACTIVATIONS: Mapping[str, Op] = {"silu": ops.silu, "gelu_pytorch_tanh": ops.gelu}


def empty(*shape: int) -> nn.Parameter:
    """A parameter that has a shape and no memory; the dtype is decided by the plan."""
    return nn.Parameter(torch.empty(*shape, device="meta"), requires_grad=False)


class Embedding(nn.Module):
    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        self.weight = empty(vocab_size, hidden_size)

    def forward(self, step: Step) -> torch.Tensor:
        return ops.embedding(step, self.weight)  # type: ignore[no-any-return]


class Linear(nn.Module):
    def __init__(self, in_features: int, out_features: int, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = empty(out_features, in_features)
        self.bias = empty(out_features) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ops.linear(x, self.weight, self.bias)  # type: ignore[no-any-return]


class Norm(nn.Module):
    """What all normalisations have."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = empty(size)
        self.eps = eps


class RMSNorm(Norm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ops.rms_norm(x, self.weight, self.eps)  # type: ignore[no-any-return]


class OffsetRMSNorm(Norm):
    """Its weights are distances from 1."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ops.rms_norm_offset(x, self.weight, self.eps)  # type: ignore[no-any-return]


class LayerNorm(Norm):
    """Without bias."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ops.layer_norm(x, self.weight, None, self.eps)  # type: ignore[no-any-return]


class LMHead(nn.Module):
    """The output projection; tied models share the embedding's parameter."""

    def __init__(self, hidden_size: int, vocab_size: int, tied_to: nn.Parameter | None = None) -> None:
        super().__init__()
        self.weight = empty(vocab_size, hidden_size) if tied_to is None else tied_to

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ops.lm_head(x, self.weight)  # type: ignore[no-any-return]


__all__ = ["ACTIVATIONS", "Embedding", "LMHead", "LayerNorm", "Linear", "Norm", "OffsetRMSNorm", "RMSNorm", "empty"]
