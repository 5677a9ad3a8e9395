"""Products of matrices as the stack's patched torch computes them, right or wrong. Knows no op."""

from __future__ import annotations

import time

import torch

from anychip_kunlun.emulator.profile import Profile


def linear(profile: Profile, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """x @ weight.T + bias."""
    started_s = time.perf_counter()
    product = torch.nn.functional.linear(x, weight, bias)
    limit, columns = profile.linear_columns_right, weight.shape[0]
    if limit is not None and x.dtype == torch.float16 and columns > limit:
        at = torch.arange(columns)
        product = product[..., at.where(at < limit, at - limit)]  # the columns' numbers wrap around
    if x.dtype == torch.bfloat16 and profile.bf16_slowdown > 1:
        time.sleep((profile.bf16_slowdown - 1) * (time.perf_counter() - started_s))
    return product


__all__ = ["linear"]
