"""Products with the model's weights: torch's own in slices of rows, int8 on the vendor's ops. Knows no layer."""

from __future__ import annotations

import torch

from anychip_kunlun.vendor import VendorOps
from anychip_sdk.ops.quantized import LEVELS

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

    def linear_int8(
        self, x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Rows of x are rounded by quant2d, which keeps each row's largest size; so do the weights' scales here."""
        out = x.new_empty((*x.shape[:-1], weight.shape[0]))
        rows = x.contiguous().view(-1, x.shape[-1])
        if not out.numel():
            return out
        levels = torch.empty(rows.shape, dtype=torch.int8, device=x.device)
        largest = torch.empty((rows.shape[0], 1), dtype=torch.float32, device=x.device)
        self._vendor.call("quant2d", x=rows, y=levels, max=largest, force_sdnn=True)
        self._vendor.call(
            "matmul",
            x=levels,
            w=weight,
            out=out.view(-1, weight.shape[0]),
            x_trans=False,
            w_trans=True,
            alpha=1.0,
            beta=0.0,
            bias=None if bias is None else bias.float(),
            x_pc_max=largest.flatten(),
            w_pc_max=scale.flatten() * LEVELS,
        )
        return out

    def lm_head_int8(self, x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return self.linear_int8(x, weight, scale).float()


__all__ = ["WEIGHT_ROWS_MAX", "Linear"]
