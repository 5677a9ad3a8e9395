"""Products with the model's weights: torch's own, in slices of rows where they are many. Knows no layer."""

from __future__ import annotations

import torch

from anychip_kunlun.vendor import VendorOps
from anychip_sdk.ops.quantized import dequantized_int8, rounded

#: float16 products of one token with a weight of 248320 rows came out wrong, in slices right; the limit itself is not
#: known, so that what was prepared is checked at load too (selfcheck.py)
WEIGHT_ROWS_MAX = 65536
#: rows of an int8 weight that exist in the model's dtype at the same time
WIDENED_ROWS = 4096


class Linear:
    def __init__(self, vendor: VendorOps) -> None:
        self._vendor = vendor

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        self._vendor.trail.last_op = "linear"
        rows = weight.shape[0]
        if rows <= WEIGHT_ROWS_MAX:
            return self._vendor.stack.linear(x, weight, bias)
        out = x.new_empty((*x.shape[:-1], rows))
        for start in range(0, rows, WEIGHT_ROWS_MAX):
            part = slice(start, start + WEIGHT_ROWS_MAX)
            out[..., part] = self._vendor.stack.linear(x, weight[part], None if bias is None else bias[part])
        return out

    def lm_head(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Rounded to the model's dtype on the way, which the op's error model has room for."""
        return self.linear(x, weight).float()

    def linear_int8(
        self, x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Weights are widened slice by slice: the vendor's own int8 product rounds whole rows of x, this op blocks."""
        levels, steps = rounded(x)
        wide = (levels * steps).to(x.dtype)
        out = x.new_empty((*x.shape[:-1], weight.shape[0]))
        for start in range(0, weight.shape[0], WIDENED_ROWS):
            part = slice(start, start + WIDENED_ROWS)
            rows = dequantized_int8(weight[part], scale[part]).to(x.dtype)
            out[..., part] = self.linear(wide, rows, None if bias is None else bias[part])
        return out

    def lm_head_int8(self, x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return self.linear_int8(x, weight, scale).float()


__all__ = ["WEIGHT_ROWS_MAX", "Linear"]
