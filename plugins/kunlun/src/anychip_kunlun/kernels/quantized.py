"""Products with int8 and int4 weights: the vendor's on whole rows, torch's on slices. Knows no layer.

The vendor's int8 product has one scale for a row of activations and one for a row of the weight. What is rounded in
blocks or scaled by groups is widened to float32, a slice of rows at a time: that saves memory, not time.
"""

from __future__ import annotations

import torch

from anychip_kunlun.kernels.linear import WEIGHT_ROWS_MAX
from anychip_kunlun.vendor import VendorOps
from anychip_sdk.hooks import PreparedWeight
from anychip_sdk.ops import Op, linear_int4, linear_int8, lm_head_int8
from anychip_sdk.ops.quantized import LEAST, LEVELS, WHOLE_ROW
from anychip_sdk.registry import KernelFunction, Need, at_most, one_of

#: rows of a weight that exist in float32 at the same time
WIDENED_ROWS = 4096
#: what the vendor's product takes; the most rows are those of the plain product, its own limit is not known
ROW_NEEDS: dict[str, Need] = {
    "block": one_of(WHOLE_ROW),
    "group_size": one_of(0),
    "out_features": at_most(WEIGHT_ROWS_MAX),
}


class Int8Rows:
    """linear_int8 by quant2d and matmul, whose scales are absolute maxima."""

    def __init__(self, vendor: VendorOps) -> None:
        self._vendor = vendor

    def linear_int8(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        absmax: torch.Tensor,
        bias: torch.Tensor | None = None,
        block: int = WHOLE_ROW,
    ) -> torch.Tensor:
        """`absmax` and `bias` as `prepare` makes them."""
        rows = x.reshape(-1, x.shape[-1]).contiguous()
        out = x.new_empty((len(rows), len(weight)))
        if out.numel():
            levels = torch.empty_like(rows, dtype=torch.int8)
            largest = rows.new_empty((len(rows), 1), dtype=torch.float32)
            self._vendor.call("quant2d", x=rows, y=levels, max=largest, force_sdnn=True)
            largest = torch.where(largest < LEAST, 0.0, largest)
            largest = torch.where(largest.isinf(), torch.nan, largest)  # the op: such a row is not a number throughout
            self._vendor.call("matmul", x=levels, w=weight, out=out, bias=bias, x_pc_max=largest, w_pc_max=absmax)
        return out.view(*x.shape[:-1], len(weight))

    def unscaled(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """The product with the whole numbers themselves."""
        return self.linear_int8(x, weight, torch.full((len(weight),), LEVELS, device=weight.device))


def prepare(tensor: torch.Tensor) -> PreparedWeight:
    """A weight of linear_int8 as it is; of its scales, the absolute maxima; its bias in float32."""
    if not tensor.is_floating_point():
        made = tensor.contiguous()
    elif tensor.dim() == 1:
        made = tensor.float()
    else:
        made = tensor.flatten() * LEVELS
    return PreparedWeight(made, made.nbytes, "rows")


def sliced(op: Op) -> KernelFunction:
    """The op's reference on slices of rows: its tensors behind x have a row for each column of the result."""

    def kernel(x: torch.Tensor, weight: torch.Tensor, *more: torch.Tensor | int | None) -> torch.Tensor:
        parts = []
        for start in range(0, weight.shape[0], WIDENED_ROWS):
            rows = slice(start, start + WIDENED_ROWS)
            rest = (one[rows] if isinstance(one, torch.Tensor) else one for one in more)
            parts.append(op.reference(x, weight[rows], *rest))
        return torch.cat(parts, dim=-1)

    return kernel


QUANTIZED: dict[str, KernelFunction] = {one.name: sliced(one) for one in (linear_int4, linear_int8, lm_head_int8)}

__all__ = ["QUANTIZED", "ROW_NEEDS", "WIDENED_ROWS", "Int8Rows", "prepare", "sliced"]
