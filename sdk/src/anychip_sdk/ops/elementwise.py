"""Activations and sums, one element at a time. Knows no shape."""

from __future__ import annotations

import torch
from torch.nn import functional

from anychip_sdk.ops.base import ROUNDED, Arg, accurate, cancelling, op, ulps

X = Arg("x", ("...", "dim"))
GATE = Arg("gate", ("...", "dim"), doc="may be a strided view of a wider tensor")
UP = Arg("up", ("...", "dim"), doc="may be a strided view of a wider tensor")
OUT = Arg("out", ("...", "dim"))


@op(X, Arg("y", ("...", "dim")), returns=OUT, error=ROUNDED)
def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """x + y."""
    return x + y


@op(X, Arg("y", ("...", "dim")), returns=OUT, error=ROUNDED)
def mul(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """x * y."""
    return x * y


@op(X, returns=OUT, error=ulps(2))
def silu(x: torch.Tensor) -> torch.Tensor:
    """x * sigmoid(x) (Elfwing et al., 2017)."""
    return functional.silu(x.to(accurate(x.dtype))).to(x.dtype)


@op(X, returns=OUT, error=cancelling(4))
def gelu(x: torch.Tensor) -> torch.Tensor:
    """The tanh approximation of x * Phi(x) (Hendrycks and Gimpel, 2016)."""
    return functional.gelu(x.to(accurate(x.dtype)), approximate="tanh").to(x.dtype)


@op(GATE, UP, returns=OUT, error=ulps(3), composed_of=("silu", "mul"))
def silu_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up, rounded once."""
    exact = accurate(gate.dtype)
    return (functional.silu(gate.to(exact)) * up.to(exact)).to(gate.dtype)


@op(GATE, UP, returns=OUT, error=cancelling(8), composed_of=("gelu", "mul"))
def gelu_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """gelu(gate) * up, rounded once."""
    exact = accurate(gate.dtype)
    return (functional.gelu(gate.to(exact), approximate="tanh") * up.to(exact)).to(gate.dtype)
