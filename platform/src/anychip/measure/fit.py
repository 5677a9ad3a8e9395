"""From measured times of kernels to their speeds. Knows numbers; runs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

import numpy as np

from anychip_sdk.speeds import KernelSpeed, Work

SHARES = tuple(share / 10 for share in range(11))  #: tried for `exposed`
ROUNDS = 4  #: until reading or multiplying is settled as the longer one in each sample


class Sample(NamedTuple):
    """What a kernel was asked for in one step, and how long it took."""

    work: Work
    seconds: float


Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def fit(samples: Sequence[Sample]) -> KernelSpeed:
    """The speed whose times are nearest to those measured, relative to them."""
    if not any(one.work.flops for one in samples):
        return _solve(samples, KernelSpeed(), products=False)
    tried = [_with_share(samples, share) for share in SHARES]
    return min(tried, key=lambda speed: _error(speed, samples))


def _with_share(samples: Sequence[Sample], share: float) -> KernelSpeed:
    speed = KernelSpeed(exposed=share, weight_bytes_per_s=1e11, flops_per_s=1e12)
    for _ in range(ROUNDS):
        speed = _solve(samples, speed, products=True)
    return speed


def _solve(samples: Sequence[Sample], before: KernelSpeed, *, products: bool) -> KernelSpeed:
    """Least squares for every rate, none below zero; which part of a product is the longer is taken from `before`."""
    rows = [_amounts(one.work, before, products=products) for one in samples]
    taken_s = np.array([one.seconds for one in samples])
    call, reading, multiplying, kv, scores, attention, moved = _nonnegative(np.array(rows) / taken_s[:, None])
    return replace(
        before,
        call_s=call,
        weight_bytes_per_s=_rate(reading),
        flops_per_s=_rate(multiplying),
        kv_bytes_per_s=_rate(kv),
        scores_per_s=_rate(scores),
        attention_flops_per_s=_rate(attention),
        moved_bytes_per_s=_rate(moved),
    )


def _amounts(work: Work, before: KernelSpeed, *, products: bool) -> tuple[float, ...]:
    """What each inverse rate is multiplied with."""
    if not products:
        return work.calls, 0.0, 0.0, work.kv_bytes, work.scores, work.attention_flops, work.moved_bytes
    reads = work.weight_bytes * _inverse(before.weight_bytes_per_s) > work.flops * _inverse(before.flops_per_s)
    shares = (1.0, before.exposed) if reads else (before.exposed, 1.0)
    weights = shares[0] * work.weight_bytes, shares[1] * work.flops
    return work.calls, *weights, work.kv_bytes, work.scores, work.attention_flops, work.moved_bytes


def _nonnegative(matrix: Array) -> list[float]:
    """x >= 0 with the least |matrix x - 1|: the best of the solutions with some unknowns at zero."""
    count, width = matrix.shape
    scale = np.abs(matrix).max(axis=0)
    present = [column for column in range(width) if scale[column] > 0]
    best, best_error = [0.0] * width, float(count)
    for size in range(1, min(len(present), count) + 1):
        for chosen in map(list, combinations(present, size)):
            found = np.linalg.lstsq(matrix[:, chosen] / scale[chosen], np.ones(count), rcond=None)[0]
            error = float(((matrix[:, chosen] / scale[chosen] @ found - 1.0) ** 2).sum())
            if (found >= 0).all() and error < best_error:
                best, best_error = [0.0] * width, error
                for column, value in zip(chosen, found / scale[chosen], strict=True):
                    best[column] = float(value)
    return best


def _error(speed: KernelSpeed, samples: Sequence[Sample]) -> float:
    return sum((speed.seconds(one.work) / one.seconds - 1.0) ** 2 for one in samples)


def _rate(inverse: float) -> float | None:
    return 1.0 / inverse if inverse > 0 else None


def _inverse(rate: float | None) -> float:
    return 0.0 if rate is None else 1.0 / rate


__all__ = ["Sample", "fit"]
