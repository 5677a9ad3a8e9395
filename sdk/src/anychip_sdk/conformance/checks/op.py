"""Values of kernels over sizes, head geometries and memory layouts. Knows the oracle; knows no kernel."""

from __future__ import annotations

from collections.abc import Callable

import torch

from anychip_sdk.conformance.context import Context
from anychip_sdk.conformance.requirements import Case, requirement
from anychip_sdk.conformance.trial import op_cases
from anychip_sdk.conformance.trial.op_cases import BATCH_OPS, EXPERT_OPS, HEAD_OPS, LOGIT_OPS, Sizes, per_op
from anychip_sdk.conformance.trial.oracle import verify
from anychip_sdk.conformance.trial.trials import Trial, resolved, trial
from anychip_sdk.ops.base import CATALOGUE, Op

#: arguments that the schema allows to be views of a wider tensor
VIEWED = ("gate", "up", "q", "k", "v")
ROWS_OPS = tuple(name for name in sorted(CATALOGUE) if name not in (*HEAD_OPS, *LOGIT_OPS))


@requirement(
    "AC-OP-001",
    level="MUST",
    text="A claimed kernel MUST be within the op's error model of the float64 reference, at every size and tail.",
    covers=tuple(f"op:{name}" for name in CATALOGUE),
    cases=per_op(op_cases.width_classes),
)
def values_are_within_bounds(context: Context, case: Case) -> None:
    op, dtype, kind = case.params["op"], case.params["dtype"], case.params["class"]
    for sizes in op_cases.widths(op, kind, context.level):
        _verify_seeds(context, op, dtype, sizes, strided=False)


@requirement(
    "AC-OP-002",
    level="MUST",
    text="Kernels over heads and pages MUST be right for all head counts, head dimensions, page sizes, contexts, "
    "windows, soft caps and sinks that they accept; kernels over experts for all counts of experts and rows, and all "
    "ways of routing.",
    cases=per_op(op_cases.geometry_classes, (*HEAD_OPS, *EXPERT_OPS)),
)
def geometries_are_right(context: Context, case: Case) -> None:
    op, dtype = case.params["op"], case.params["dtype"]
    for sizes in op_cases.geometry(op, case.params["class"], context.level):
        _verify_seeds(context, op, dtype, sizes, strided=True)


@requirement(
    "AC-OP-003",
    level="MUST",
    text="A kernel MUST be right on views of wider tensors and on tensors that start off alignment.",
    cases=per_op(lambda op, claims, level: ("misaligned", "sliced")),
)
def views_are_right(context: Context, case: Case) -> None:
    op, dtype = case.params["op"], case.params["dtype"]
    for salt, sizes in enumerate((op_cases.usual(op), {**op_cases.usual(op), "hidden": 33, "inner": 17, "vocab": 35})):
        if case.params["class"] == "misaligned":
            for shift in (1, 3):
                verify(context, trial(context, op, dtype, sizes, salt, strided=True), shift=shift)
        else:
            verify(context, _relaid(context, trial(context, op, dtype, sizes, salt, strided=True), _sliced))


@requirement(
    "AC-OP-004",
    level="MUST",
    text="A kernel MUST accept no rows at all where the op allows it, and return results of the right form.",
    cases=per_op(only=tuple(name for name in sorted(CATALOGUE) if name not in BATCH_OPS)),
)
def empty_inputs_are_accepted(context: Context, case: Case) -> None:
    for sizes in op_cases.empties(case.params["op"]):
        verify(context, trial(context, case.params["op"], case.params["dtype"], sizes))


@requirement(
    "AC-OP-005",
    level="SHOULD",
    text="A kernel on rows SHOULD be right on transposed inputs.",
    cases=per_op(only=ROWS_OPS),
)
def transposed_inputs_are_right(context: Context, case: Case) -> None:
    op, dtype = case.params["op"], case.params["dtype"]
    one = trial(context, op, dtype, op_cases.usual(op))
    verify(context, _relaid(context, one, lambda value: value.transpose(0, 1).contiguous().transpose(0, 1)))


def _verify_seeds(context: Context, op: str, dtype: str, sizes: Sizes, *, strided: bool) -> None:
    for salt in range(context.scaled(1, 2, 6)):
        verify(context, trial(context, op, dtype, sizes, salt, strided=strided and salt % 2 == 0))


def _sliced(value: torch.Tensor) -> torch.Tensor:
    """The same values as columns of a tensor that is five wider, two of them before."""
    wide = torch.full((*value.shape[:-1], value.shape[-1] + 5), 7.0, dtype=value.dtype)
    view = wide[..., 2 : 2 + value.shape[-1]]
    view.copy_(value)
    return view


def _relaid(context: Context, one: Trial, relay: Callable[[torch.Tensor], torch.Tensor]) -> Trial:
    """The trial with its activations in another memory layout; weights, ids and caches keep theirs."""
    args = tuple(
        relay(value) if _is_activation(one.op, i) and isinstance(value, torch.Tensor) else value
        for i, value in enumerate(one.args)
    )
    return resolved(context, one.op.name, one.dtype, args, one.sizes)


def _is_activation(op: Op, index: int) -> bool:
    arg = op.args[index]
    return arg.dtype == "T" and bool(arg.shape) and not arg.weight and not arg.mutated and not arg.state


__all__: list[str] = []
