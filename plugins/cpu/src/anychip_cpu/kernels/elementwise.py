"""Activations, sums and products: what each is in torch, and which of the library's gates. Knows no shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch.nn import functional

from anychip_sdk.registry import KernelFunction


class Elementwise(NamedTuple):
    """An op on elements.

    Attributes:
        function: in torch.
        gate: its number among the gates of rows.hpp, each an activation of one argument times the other; the library
            then has a kernel and programs an instruction for it. None: it is no gate.
    """

    function: KernelFunction
    gate: int | None


def silu_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """torch's 16-bit silu rounds its float32 result; the product rounds again, for half the memory traffic."""
    return functional.silu(gate).mul_(up)


def gelu_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return functional.gelu(gate, approximate="tanh").mul_(up)


def sigmoid_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return gate.sigmoid().mul_(up)


def silu(x: torch.Tensor) -> torch.Tensor:
    return functional.silu(x)


def gelu(x: torch.Tensor) -> torch.Tensor:
    return functional.gelu(x, approximate="tanh")


def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y


def mul(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x * y


def gate_rows(x: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    return x * logits.sigmoid()


def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x * factor


def cap_logits(logits: torch.Tensor, cap: float) -> torch.Tensor:
    return (logits / cap).tanh_().mul_(cap)


OPS: Mapping[str, Elementwise] = {
    "add": Elementwise(add, None),
    "cap_logits": Elementwise(cap_logits, None),
    "gate_rows": Elementwise(gate_rows, None),
    "gelu": Elementwise(gelu, None),
    "gelu_mul": Elementwise(gelu_mul, 1),
    "mul": Elementwise(mul, None),
    "scale": Elementwise(scale, None),
    "sigmoid_mul": Elementwise(sigmoid_mul, 2),
    "silu": Elementwise(silu, None),
    "silu_mul": Elementwise(silu_mul, 0),
}
GATES: Mapping[str, int] = {name: one.gate for name, one in OPS.items() if one.gate is not None}

__all__ = [
    "GATES",
    "OPS",
    "Elementwise",
    "add",
    "cap_logits",
    "gate_rows",
    "gelu",
    "gelu_mul",
    "mul",
    "scale",
    "sigmoid_mul",
    "silu",
    "silu_mul",
]
