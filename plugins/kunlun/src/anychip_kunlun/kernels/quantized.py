"""Products with int8 and int4 weights, widened a slice of rows at a time. Knows arguments by rows; knows no layout.

The vendor's own int8 product rounds whole rows of activations and these ops round blocks of 32, so that it can't serve
them. What is saved is memory, not time.
"""

from __future__ import annotations

import torch

from anychip_sdk.ops import Op, linear_int4, linear_int8, lm_head_int8
from anychip_sdk.registry import KernelFunction

#: rows of a weight that exist in float32 at the same time
WIDENED_ROWS = 4096


def sliced(op: Op) -> KernelFunction:
    """The op's reference on slices of rows: its arguments behind x have a row for each column of the result."""

    def kernel(x: torch.Tensor, weight: torch.Tensor, *more: torch.Tensor | None) -> torch.Tensor:
        parts = []
        for start in range(0, weight.shape[0], WIDENED_ROWS):
            rows = slice(start, start + WIDENED_ROWS)
            parts.append(op.reference(x, weight[rows], *(None if one is None else one[rows] for one in more)))
        return torch.cat(parts, dim=-1)

    return kernel


QUANTIZED: dict[str, KernelFunction] = {one.name: sliced(one) for one in (linear_int4, linear_int8, lm_head_int8)}

__all__ = ["QUANTIZED", "WIDENED_ROWS", "sliced"]
