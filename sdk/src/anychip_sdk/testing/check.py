"""How far a kernel is from the float64 reference, measured in its op's error model. Knows no case and no chip."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from anychip_sdk.ops.base import Arg, Op
from anychip_sdk.registry import Facts, Kernel, KernelFunction, with_prepared
from anychip_sdk.step import Step
from anychip_sdk.testing.bounds import Numerics, error_bounds, has_own_dtype, result_dtype


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
    kernel: KernelFunction | Kernel,
    args: Sequence[Any],
    dtype: torch.dtype,
    *,
    prepare: Callable[[str, torch.Tensor], Any] | None = None,
    facts: Facts | None = None,
) -> Comparison:
    """Run kernel and float64 reference on copies of the same arguments and compare all results.

    Args:
        op: the catalogue's op.
        kernel: what is checked: a function that takes the op's arguments, or a registered kernel, which may prepare
            something of the step.
        args: in the catalogue's order, as `random_case` makes them; they are not changed.
        dtype: the op's own, "T".
        prepare: (argument's name, weight) -> what the kernel gets instead, for kernels on prepared weights.
        facts: what the registered kernel was chosen for.

    Raises:
        AssertionError: a result's shape or dtype is not the schema's.
    """
    wanted, bounds = expected(op, args, dtype)
    given = [copied(value) for value in args]
    if prepare is not None:
        given = [prepare(arg.name, v) if _is_weight(arg, v) else v for arg, v in zip(op.args, given, strict=True)]
    if isinstance(kernel, Kernel):
        given = with_prepared(kernel, given, facts or {})
    function = kernel.function if isinstance(kernel, Kernel) else kernel
    got = results_of(function(*given))
    check_form(op, got, wanted, dtype)
    return compare(op, got, wanted, bounds, dtype)


def expected(
    op: Op, args: Sequence[Any], dtype: torch.dtype, numerics: Numerics = Numerics()
) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """The reference's results in float64, and how far a kernel may be from each element."""
    wanted = results_of(op.reference(*[widened(value) for value in args]))
    return wanted, error_bounds(op, [widened(value) for value in args], wanted, dtype, numerics)


def compare(
    op: Op,
    got: Sequence[torch.Tensor],
    wanted: Sequence[torch.Tensor],
    bounds: Sequence[torch.Tensor],
    dtype: torch.dtype,
) -> Comparison:
    """The worst element: not a number must meet not a number, infinity the same infinity."""
    worst = Comparison(0.0, op.returns[0].name, 0.0, 0.0)
    for arg, one, want, bound in zip(op.returns, got, wanted, bounds, strict=True):
        # a result of a wider dtype may have been rounded to the op's own before
        rounding = dtype if has_own_dtype(op) and one.is_floating_point() else one.dtype
        found = _worst(arg.name, one.double(), want.double(), bound, rounding)
        worst = max(worst, found, key=lambda comparison: comparison.ratio)
    return worst


def _worst(name: str, got: torch.Tensor, want: torch.Tensor, bound: torch.Tensor, dtype: torch.dtype) -> Comparison:
    if got.numel() == 0:
        return Comparison(0.0, name, 0.0, 0.0)
    same = (got == want) | (got.isnan() & want.isnan())
    if dtype.is_floating_point:
        same |= _overflown(got, want, torch.finfo(dtype))
    error = torch.where(same, 0.0, (got - want).abs()).nan_to_num(nan=torch.inf, posinf=torch.inf)
    ratio = torch.where(same, 0.0, error / bound).nan_to_num(nan=torch.inf, posinf=torch.inf)
    at = int(ratio.argmax())
    return Comparison(ratio.flatten()[at].item(), name, error.flatten()[at].item(), bound.flatten()[at].item())


def _overflown(got: torch.Tensor, want: torch.Tensor, info: torch.finfo) -> torch.Tensor:
    """What the dtype can't hold is infinity of the same sign; near its end either that or the largest number."""
    beyond = want.abs() > info.max * (1 - info.eps)
    return beyond & got.isinf() & (got.sign() == want.sign())


def check_form(op: Op, got: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor], dtype: torch.dtype) -> None:
    """Raise AssertionError where the number, shapes or dtypes of results are not the schema's."""
    if len(got) != len(wanted):
        message = f"{op.name}: {len(got)} results, expected {len(wanted)}"
        raise AssertionError(message)
    for arg, one, want in zip(op.returns, got, wanted, strict=True):
        right = result_dtype(op, arg, dtype)
        if one.shape != want.shape or one.dtype != right:
            message = f"{op.name}: {arg.name} is {one.dtype} {tuple(one.shape)}, expected {right} {tuple(want.shape)}"
            raise AssertionError(message)


def _is_weight(arg: Arg, value: object) -> bool:
    return arg.weight and isinstance(value, torch.Tensor)


def widened(value: Any) -> Any:
    """A float64 copy of floating tensors, a copy of others."""
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.double() if value.dtype != torch.float64 else value.clone()
    return copied(value)


def copied(value: Any) -> Any:
    """A copy with the same strides, so that a strided argument stays one."""
    if isinstance(value, torch.Tensor):
        storage = value.untyped_storage().clone()
        copy = torch.empty(0, dtype=value.dtype)
        return copy.set_(storage, value.storage_offset(), value.shape, value.stride())
    return value.to(value.positions.device) if isinstance(value, Step) else value


def results_of(answer: Any) -> tuple[torch.Tensor, ...]:
    """A kernel's answer as a tuple, whether it has one result or several."""
    return tuple(answer) if isinstance(answer, (tuple, list)) else (answer,)


__all__ = ["Comparison", "check_form", "check_kernel", "compare", "copied", "expected", "results_of", "widened"]
