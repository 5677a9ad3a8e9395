"""Products with integer weights in the native library: packing and calling. Knows its struct and layouts; no layer."""

from __future__ import annotations

import torch

from anychip_cpu import native
from anychip_cpu.kernels.products import TILE, WEIGHTS, Packed, Weights, multiply
from anychip_sdk.hooks import PreparedWeight
from anychip_sdk.ops.quantized import BLOCK

OPS = ("linear_int4", "linear_int8", "lm_head_int8")


class Products:
    """One method for each op. A row's result depends on that row alone.

    Args:
        library: the native kernels; None: the methods can't be called.
    """

    def __init__(self, library: native.Library | None) -> None:
        self._library = library

    def linear_int8(
        self,
        x: torch.Tensor,
        weight: Packed,
        scale: torch.Tensor,
        bias: torch.Tensor | None = None,
        block: int = BLOCK,
    ) -> torch.Tensor:
        assert block == BLOCK
        return self._multiply(x, Weights(weight, scale, bias=bias), x.dtype)

    def linear_int4(
        self,
        x: torch.Tensor,
        weight: Packed,
        scale: torch.Tensor,
        minimum: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        return self._multiply(x, Weights(weight, scale, minimum, bias), x.dtype)

    def lm_head_int8(self, x: torch.Tensor, weight: Packed, scale: torch.Tensor, block: int = BLOCK) -> torch.Tensor:
        assert block == BLOCK
        return self._multiply(x, Weights(weight, scale), torch.float32)

    def _multiply(self, x: torch.Tensor, weights: Weights, dtype: torch.dtype) -> torch.Tensor:
        assert self._library is not None
        return multiply(self._library, x, weights, dtype)


def prepare(tensor: torch.Tensor) -> PreparedWeight:
    """A weight, its scales or minimums [out, groups], or a bias [out], as the library reads them."""
    outputs = tensor.shape[0]
    fill = -outputs % TILE
    if tensor.dim() == 1:
        return _plain(torch.nn.functional.pad(tensor.float(), (0, fill)))
    if tensor.is_floating_point():
        tiles = torch.nn.functional.pad(tensor, (0, 0, 0, fill)).view(-1, TILE, tensor.shape[1])
        return _plain(tiles.transpose(1, 2).contiguous())
    bits = 8 if tensor.dtype == torch.int8 else 4
    row_bytes = BLOCK * bits // 8
    levels, rest = tensor.view(torch.uint8), -tensor.shape[1] % row_bytes
    if fill or rest:  # else a copy would take as much memory as the weight
        levels = torch.nn.functional.pad(levels, (0, rest, 0, fill))
    source = levels.view(-1, TILE, levels.shape[1] // row_bytes, row_bytes // 4, 4).permute(0, 2, 3, 1, 4)
    packed = WEIGHTS.take(levels.numel()).view(source.shape)
    packed.copy_(source)
    if bits == 8:
        packed ^= 128  # from signed to 128 more, unsigned
    return PreparedWeight(Packed(packed, outputs, bits), packed.nbytes, "tiled")


def _plain(tensor: torch.Tensor) -> PreparedWeight:
    return PreparedWeight(tensor, tensor.nbytes, "tiled")


__all__ = ["OPS", "Products", "prepare"]
