"""Products with the model's weights: torch's own, in slices of rows where they are many. Knows no layer."""

from __future__ import annotations

import torch

from anychip_kunlun.vendor import VendorOps

#: float16 products of one token with a weight of 248320 rows came out wrong, in slices right; the limit itself is not
#: known, so that what was prepared is checked at load too (selfcheck.py)
WEIGHT_ROWS_MAX = 65536


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


__all__ = ["WEIGHT_ROWS_MAX", "Linear"]
