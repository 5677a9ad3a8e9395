"""What kernels prepare of a step: it follows the step, again and again, in buffers of any size. Knows no kernel."""

from __future__ import annotations

import dataclasses

from anychip_sdk.conformance.context import Context
from anychip_sdk.conformance.requirements import Case, requirement
from anychip_sdk.conformance.trial import op_cases
from anychip_sdk.conformance.trial.op_cases import per_op
from anychip_sdk.conformance.trial.oracle import judge, launch, on_host
from anychip_sdk.conformance.trial.placing import placed
from anychip_sdk.conformance.trial.trials import Trial, trial
from anychip_sdk.ops.base import CATALOGUE
from anychip_sdk.step import Step, StepLimits

STEP_OPS = tuple(name for name, op in sorted(CATALOGUE.items()) if op.step_index is not None)


@requirement(
    "AC-OP-023",
    level="MUST",
    text="What a kernel prepares of a step MUST follow the step: prepared again for another step, and for the first "
    "one once more, the kernel MUST be right each time, with buffers for larger steps too.",
    cases=per_op(only=STEP_OPS),
)
def preparations_follow_the_step(context: Context, case: Case) -> None:
    op, dtype = case.params["op"], case.params["dtype"]
    first = trial(context, op, dtype, op_cases.usual(op), "first")
    prepare, at = first.kernel.prepare, first.op.step_index
    if prepare is None or at is None:
        return
    second = _sharing(first, trial(context, op, dtype, {**op_cases.usual(op), **_fewer(first)}, "second"))
    names = [arg.name for arg in first.op.args]
    with placed(context, first) as one, placed(context, second) as other:
        constants = {name: one.values[names.index(name)] for name in prepare.constants}
        follow = prepare.make(first.facts, constants, _room(one.values[at], other.values[at]))
        for given, where in ((first, one), (second, other), (first, one)):
            values = list(where.values)
            values[at] = follow(values[at])
            judge(context, given, on_host(given, where, launch(context, given, where, values)))


def _sharing(first: Trial, second: Trial) -> Trial:
    """The second trial with the first one's constants, as a model's layers share a table."""
    prepare = first.kernel.prepare
    shared = () if prepare is None else prepare.constants
    pairs = zip(first.op.args, first.args, second.args, strict=True)
    args = tuple(mine if arg.name in shared else own for arg, mine, own in pairs)
    return dataclasses.replace(second, args=args)


def _fewer(one: Trial) -> dict[str, int]:
    """Sizes of a smaller step, so that something of a larger one before it could be left over."""
    sizes = {"tokens": 3, "decode_rows": 1, "prefill_rows": 1}
    return {name: size for name, size in sizes.items() if name in one.sizes or one.op.name in op_cases.BATCH_OPS}


def _room(*steps: Step) -> StepLimits:
    """Twice what the larger of the steps needs."""
    limits = [step.limits() for step in steps]
    return StepLimits(
        2 * max(limit.tokens for limit in limits),
        2 * max(limit.rows for limit in limits),
        2 * max(limit.pages for limit in limits),
        limits[0].device,
    )


__all__ = ["STEP_OPS", "preparations_follow_the_step"]
