"""How far a kernel is from the float64 reference, measured in its op's error model. Knows no case and no chip."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from anychip_sdk.ops.base import Arg, AttentionBatch, Op
from anychip_sdk.registry import KernelFunction


class Comparison(NamedTuple):
    """The worst element over all results."""

    ratio: float  #: its error over the bound; at most 1 passes, inf where one side is not a number
    result: str  #: which result it is in
    error: float
    bound: float

    @property
    def passed(self) -> bool:
        return self.ratio <= 1.0


def check_kernel(
    op: Op,
    kernel: KernelFunction,
    args: Sequence[Any],
    dtype: torch.dtype,
    *,
    prepare: Callable[[str, torch.Tensor], Any] | None = None,
) -> Comparison:
    """Run kernel and float64 reference on copies of the same arguments and compare all results.

    Args:
        op: the catalogue's op.
        kernel: what is checked.
        args: in the catalogue's order, as `random_case` makes them; they are not changed.
        dtype: the op's own, "T".
        prepare: (argument's name, weight) -> what the kernel gets instead, for kernels on prepared weights.

    Raises:
        AssertionError: a result's shape or dtype is not the schema's.
    """
    exact = [_widened(value) for value in args]
    wanted = _results(op.reference(*exact))
    given = [_copied(value) for value in args]
    if prepare is not None:
        given = [prepare(arg.name, v) if _is_weight(arg, v) else v for arg, v in zip(op.args, given, strict=True)]
    got = _results(kernel(*given))
    _check_form(op, got, wanted, dtype)
    depth = _depth(op, args)
    worst = Comparison(0.0, op.returns[0].name, 0.0, 0.0)
    for arg, one, want in zip(op.returns, got, wanted, strict=True):
        rounding = dtype if _has_own_dtype(op) else one.dtype
        found = _worst(arg.name, one, want, op.error.tolerance(rounding, depth), _smallest(rounding))
        worst = max(worst, found, key=lambda comparison: comparison.ratio)
    return worst


def _smallest(dtype: torch.dtype) -> float:
    """The distance between the numbers next to 0, below which nothing can be told apart."""
    if not dtype.is_floating_point:
        return 0.0
    info = torch.finfo(dtype)
    return info.smallest_normal * info.eps


def _worst(
    name: str, got: torch.Tensor, want: torch.Tensor, tolerance: tuple[float, float], smallest: float
) -> Comparison:
    relative, absolute = tolerance
    if got.numel() == 0:
        return Comparison(0.0, name, 0.0, 0.0)
    got, want = got.double(), want.double()
    same = (got == want) | (got.isnan() & want.isnan())
    scale = want[want.isfinite()].square().mean().sqrt().item() if bool(want.isfinite().any()) else 0.0
    bound = relative * want.abs() + absolute * scale + (smallest if relative else 0.0)
    error = torch.where(same, 0.0, (got - want).abs()).nan_to_num(nan=torch.inf)
    ratio = torch.where(same, 0.0, error / bound).nan_to_num(nan=torch.inf, posinf=torch.inf)
    at = int(ratio.argmax())
    return Comparison(ratio.flatten()[at].item(), name, error.flatten()[at].item(), bound.flatten()[at].item())


def _check_form(op: Op, got: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor], dtype: torch.dtype) -> None:
    if len(got) != len(wanted):
        message = f"{op.name}: {len(got)} results, expected {len(wanted)}"
        raise AssertionError(message)
    for arg, one, want in zip(op.returns, got, wanted, strict=True):
        expected = _result_dtype(op, arg, dtype)
        if one.shape != want.shape or one.dtype != expected:
            message = (
                f"{op.name}: {arg.name} is {one.dtype} {tuple(one.shape)}, expected {expected} {tuple(want.shape)}"
            )
            raise AssertionError(message)


def _has_own_dtype(op: Op) -> bool:
    """False for ops on ids and float32 logits, which are the same for a model of any dtype."""
    return any(arg.dtype == "T" and arg.shape for arg in op.args)


def _result_dtype(op: Op, arg: Arg, dtype: torch.dtype) -> torch.dtype:
    if arg.dtype == "T":
        return dtype
    fixed: torch.dtype = getattr(torch, arg.dtype)
    # what is float32 at least, such as logits, is float64 where the op is
    return dtype if fixed == torch.float32 and dtype == torch.float64 and _has_own_dtype(op) else fixed


def _depth(op: Op, args: Sequence[Any]) -> int:
    """The size of the dimension that the op sums over."""
    if op.error.depth is None:
        return 1
    for value in args:
        if op.error.depth == "context" and isinstance(value, AttentionBatch):
            return max(value.context_lens_host, default=1)
    for arg, value in zip(op.args, args, strict=True):
        names = [name.strip() for name in arg.shape.strip("[]").split(",")]
        if isinstance(value, torch.Tensor) and op.error.depth in names:
            return value.shape[names.index(op.error.depth) - len(names)]
    message = f"{op.name}: its error model sums over '{op.error.depth}', which no argument has"
    raise AssertionError(message)


def _is_weight(arg: Arg, value: object) -> bool:
    return arg.weight and isinstance(value, torch.Tensor)


def _widened(value: Any) -> Any:
    """A float64 copy of floating tensors, a copy of others."""
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.double() if value.dtype != torch.float64 else value.clone()
    return _copied(value)


def _copied(value: Any) -> Any:
    """A copy with the same strides, so that a strided argument stays one; a batch without what was derived from it."""
    if isinstance(value, torch.Tensor):
        storage = value.untyped_storage().clone()
        copy = torch.empty(0, dtype=value.dtype)
        return copy.set_(storage, value.storage_offset(), value.shape, value.stride())
    if isinstance(value, AttentionBatch):
        return AttentionBatch(**{**vars(value), "derived": {}})
    return value


def _results(answer: Any) -> tuple[torch.Tensor, ...]:
    return answer if isinstance(answer, tuple) else (answer,)


__all__ = ["Comparison", "check_kernel"]
