"""One call of the native library's product. Knows its struct and what packed weights are; knows no op."""

from __future__ import annotations

import struct
from typing import NamedTuple

import torch

from anychip_cpu import native
from anychip_cpu.memory import Arena

TILE = 32  #: outputs that lie side by side
#: ProductArgs of products.hpp
_ARGS = struct.Struct("=6Q6q3i")

#: where packed weights lie
WEIGHTS = Arena()


class Packed(NamedTuple):
    """A weight in the library's layout; `outputs` leaves out those that only fill the last tile."""

    tensor: torch.Tensor
    outputs: int
    bits: int  #: of each number


class Weights(NamedTuple):
    """What one product multiplies with, each prepared; scale and minimum are [tiles, groups, TILE]."""

    packed: Packed
    scale: torch.Tensor | None = None
    minimum: torch.Tensor | None = None
    bias: torch.Tensor | None = None


def multiply(library: native.Library, x: torch.Tensor, weights: Weights, dtype: torch.dtype) -> torch.Tensor:
    """x @ weight.T + bias for x [..., in]; a row's result depends on that row alone."""
    if x.dim() != 2 or x.stride(1) != 1:
        x = x.contiguous()
    out = torch.empty((*x.shape[:-1], weights.packed.outputs), dtype=dtype)
    if library.product(packed_args(x, weights, out)):
        message = "native product: no memory for the rounded activations"
        raise MemoryError(message)
    return out


def packed_args(x: torch.Tensor, weights: Weights, out: torch.Tensor) -> bytes:
    """ProductArgs; the elements of each row of x lie side by side."""
    width = x.shape[-1]
    return _ARGS.pack(
        x.data_ptr(),
        weights.packed.tensor.data_ptr(),
        _address(weights.scale),
        _address(weights.minimum),
        _address(weights.bias),
        out.data_ptr(),
        x.numel() // width,
        width,
        weights.packed.outputs,
        x.stride(0) if x.dim() == 2 else width,
        0 if weights.scale is None else weights.scale.shape[1],
        torch.get_num_threads(),
        native.DTYPES[x.dtype],
        native.DTYPES[out.dtype],
        weights.packed.bits,
    )


def _address(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


__all__ = ["TILE", "WEIGHTS", "Packed", "Weights", "multiply", "packed_args"]
