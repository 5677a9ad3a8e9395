"""Kernels that write where they must not, differ from run to run, or depend on their company. Knows no check."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch

from anychip_sdk.conformance.mutants.base import HealthyPlugin, healthy, healthy_claims, mutant
from anychip_sdk.conformance.mutants.kernels import exact
from anychip_sdk.ops import CATALOGUE, Arg, Op
from anychip_sdk.registry import KernelFunction

Tensor = torch.Tensor


@mutant("AC-OP-011", op="apply_penalties")
def penalties_touch_every_row(logits: Tensor, *rest: Tensor) -> Tensor:
    """All rows are rounded to bfloat16 on the way."""
    found: Tensor = exact("apply_penalties")(logits.copy_(logits.bfloat16()), *rest)
    return found


@mutant("AC-OP-013", op="rms_norm")
def rms_norm_depends_on_its_address(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The last bit depends on where the input lies."""
    out: Tensor = exact("rms_norm")(x, weight, eps)
    return out * (1 + torch.finfo(x.dtype).eps) if x.data_ptr() // 1024 % 2 else out


@mutant("AC-OP-020", op="linear")
def linear_is_wrong_on_thirteens(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Wrong where the inner dimension is a multiple of neither 2, 3 nor 5, which no tile of a test was."""
    out: Tensor = exact("linear")(x, weight, bias)
    return out * 1.01 if all(x.shape[-1] % prime for prime in (2, 3, 5)) else out


def row_by_row(op: str) -> Callable[..., Any]:
    """The reference on one row after the other, so that no row knows how many there are."""
    are_rows = [_has_rows(arg) for arg in CATALOGUE[op].args]

    def kernel(*args: Any) -> Any:
        count = len(args[0])
        if count < 2:
            return exact(op)(*args)
        cut = list(zip(args, are_rows, strict=False))  # arguments with a default may be left out
        rows = [[v[i : i + 1].clone() if of_row else v for v, of_row in cut] for i in range(count)]
        return torch.cat([exact(op)(*mine) for mine in rows])

    return kernel


def _has_rows(arg: Arg) -> bool:
    return not arg.weight and arg.shape[:1] in (("...",), ("rows",), ("tokens",))


def _is_row_by_row(op: Op) -> bool:
    """Whether each row of the only result comes of the same row of the arguments."""
    first = op.args[0]
    return op.step_index is None and len(op.returns) == 1 and not op.mutated and first.dtype == "T" and _has_rows(first)


ROW_BY_ROW = tuple(name for name, op in sorted(CATALOGUE.items()) if _is_row_by_row(op))


class RowByRowPlugin(HealthyPlugin):
    """Healthy, and a row's bits do not depend on its company."""

    replaced: ClassVar[Mapping[str, KernelFunction]] = {op: row_by_row(op) for op in ROW_BY_ROW}


INVARIANT = healthy_claims(batch_invariant=True)
healthy("AC-OP-014", RowByRowPlugin, INVARIANT)


@mutant("AC-OP-014", op="linear", base=RowByRowPlugin, claims=INVARIANT)
def linear_splits_by_batch(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The sum is split in two where there are few rows."""
    if len(x) > 8:
        whole: Tensor = row_by_row("linear")(x, weight, bias)
        return whole
    half = x.shape[-1] // 2
    first = exact("linear")(x[:, :half].float(), weight[:, :half].float())
    second = exact("linear")(x[:, half:].float(), weight[:, half:].float())
    total = first + second if bias is None else first + second + bias.float()
    return total.to(x.dtype)


__all__ = [
    "ROW_BY_ROW",
    "RowByRowPlugin",
    "linear_is_wrong_on_thirteens",
    "linear_splits_by_batch",
    "penalties_touch_every_row",
    "rms_norm_depends_on_its_address",
    "row_by_row",
]
