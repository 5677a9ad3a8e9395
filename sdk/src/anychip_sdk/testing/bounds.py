"""How far each element of a result may be from the float64 reference. Knows no op and no kernel.

A sum of n products is off by at most about sqrt(n) * u times the sum of the products' sizes (Higham and Mary, 2019),
u being half the accumulator's epsilon. So the bound follows what was summed: a small result of large terms that cancel
may be off by more than a small result of small terms, and a constant bias can't hide behind the largest element.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from anychip_sdk.ops.base import Arg, Op
from anychip_sdk.ops.checks import Terms
from anychip_sdk.step import Step

F32_EPS = torch.finfo(torch.float32).eps


class Numerics(NamedTuple):
    """What a kernel claims of its arithmetic."""

    accumulator: torch.dtype | None = None  #: that sums are kept in; None: float32, or the op's own if that is wider
    keeps_subnormals: bool = True  #: False: they may become zero


def error_bounds(
    op: Op,
    args: Sequence[Any],
    wanted: Sequence[torch.Tensor],
    dtype: torch.dtype,
    numerics: Numerics = Numerics(),
) -> tuple[torch.Tensor, ...]:
    """One float64 bound for each element of each result.

    Args:
        op: the catalogue's op.
        args: its arguments, floating ones as float64.
        wanted: the reference's results on them.
        dtype: the op's own, "T".
        numerics: what the kernel claims.
    """
    make = None if op.checks is None else op.checks.terms
    terms: Sequence[Terms | None] = make(*args) if make is not None else [None] * len(wanted)
    bounds = []
    for arg, want, term in zip(op.returns, wanted, terms, strict=True):
        rounding = dtype if has_own_dtype(op) and not arg.state else result_dtype(op, arg, dtype)
        if op.error.kind == "exact" or not rounding.is_floating_point:
            bounds.append(torch.zeros(want.shape, dtype=torch.float64))
        else:
            bounds.append(_bound(op, args, want.double(), term, rounding, numerics))
    return tuple(bounds)


def _bound(
    op: Op, args: Sequence[Any], want: torch.Tensor, terms: Terms | None, dtype: torch.dtype, numerics: Numerics
) -> torch.Tensor:
    info = torch.finfo(dtype)
    u = torch.finfo(numerics.accumulator).eps / 2 if numerics.accumulator else min(F32_EPS, info.eps) / 2
    factor = op.error.ulps
    # below the smallest subnormal nothing can be told apart; a device that flushes has no numbers below the normal ones
    least = factor * info.smallest_normal * (info.eps if numerics.keeps_subnormals else 1.0)
    size = want.abs()
    if op.error.kind == "rounded":
        return size * info.eps + least
    if op.error.kind == "ulps":
        summed = want.shape[-1] if op.name.endswith("norm") else 1
        return (factor * info.eps + math.sqrt(summed) * u) * size + least
    if terms is None:  # blocks of several ops: by the size of the whole result
        finite = want[want.isfinite()]
        scale = finite.square().mean().sqrt().item() if finite.numel() else 0.0
        share = factor * (2 * u * math.sqrt(max(1, depth_of(op, args))) + 2 * info.eps)
        return 2 * info.eps * size + share * scale + least
    bound: torch.Tensor = factor * u * terms.sums + 2 * info.eps * size + least
    bound = bound if terms.rounded is None else bound + info.eps * terms.rounded
    return bound if terms.stepped is None else bound + terms.stepped


def has_own_dtype(op: Op) -> bool:
    """False for ops on ids and float32 logits, which are the same for a model of any dtype."""
    return any(arg.dtype == "T" and arg.shape for arg in op.args)


def result_dtype(op: Op, arg: Arg, dtype: torch.dtype) -> torch.dtype:
    """What a result of the schema is for an op of `dtype`."""
    if arg.dtype == "T":
        return dtype
    fixed: torch.dtype = getattr(torch, arg.dtype)
    # what is float32 at least, such as logits, is float64 where the op is
    return dtype if fixed == torch.float32 and dtype == torch.float64 and has_own_dtype(op) else fixed


def depth_of(op: Op, args: Sequence[Any]) -> int:
    """The size of the dimension that the op sums over."""
    if op.error.depth is None:
        return 1
    for value in args:
        if op.error.depth == "context" and isinstance(value, Step):
            return max(value.context_lens_host, default=1)
    for arg, value in zip(op.args, args, strict=True):
        if isinstance(value, torch.Tensor) and op.error.depth in arg.shape:
            return value.shape[arg.shape.index(op.error.depth) - len(arg.shape)]
    message = f"{op.name}: its error model sums over '{op.error.depth}', which no argument has"
    raise AssertionError(message)


__all__ = ["Numerics", "depth_of", "error_bounds", "has_own_dtype", "result_dtype"]
