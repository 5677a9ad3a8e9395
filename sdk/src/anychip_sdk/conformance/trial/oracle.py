"""Run a backend's kernel as the engine would and judge it by the float64 reference. Knows ops; knows no requirement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from anychip_sdk.conformance.context import Context
from anychip_sdk.conformance.requirements import Violation, expect
from anychip_sdk.conformance.trial.placing import Placed, placed
from anychip_sdk.conformance.trial.trials import Trial
from anychip_sdk.ops.base import Op
from anychip_sdk.registry import with_prepared
from anychip_sdk.testing.bounds import Numerics
from anychip_sdk.testing.check import Comparison, check_form, compare, expected, results_of

WORST = 1e9  #: the headroom of what is not a number: reports hold finite numbers only


def run(context: Context, one: Trial, *, shift: int = 0) -> tuple[torch.Tensor, ...]:
    """The kernel's results on the host."""
    with placed(context, one, shift=shift) as where:
        return call(context, one, where)


def call(context: Context, one: Trial, where: Placed) -> tuple[torch.Tensor, ...]:
    """One call on placed arguments: results on the host."""
    return on_host(one, where, launch(context, one, where))


def on_host(one: Trial, where: Placed, answer: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Copies of the results on the host; of states, the pages that the arguments have."""
    if len(answer) != len(one.op.returns):
        message = f"{one}: {len(answer)} results, expected {len(one.op.returns)}"
        raise Violation(message, **one.named())
    results = []
    for arg, value in zip(one.op.returns, answer, strict=True):
        if arg.state and where.pool is not None:
            results.append(value[: len(one.named()[arg.name])].cpu().clone())
        else:
            results.append(value.cpu().clone())
    return tuple(results)


def launch(context: Context, one: Trial, where: Placed, given: Sequence[Any] | None = None) -> tuple[torch.Tensor, ...]:
    """Run the kernel and wait for the device.

    Args:
        context: of the check.
        one: what is run.
        where: its arguments on the device.
        given: the same as the kernel takes them; None: what it prepares of the step is made for this call.
    """
    try:
        with torch.inference_mode():
            taken = with_prepared(one.kernel, where.values, one.facts) if given is None else given
            answer = results_of(one.kernel.function(*taken))
        context.device.synchronize()
    except Exception as error:
        facts = {name: fact for name, fact in one.facts.items() if fact is not None}
        message = f"{one}: it accepted {facts} and then raised {type(error).__name__}: {error}"
        raise Violation(message, **one.named()) from error
    for value in answer:
        expect(isinstance(value, torch.Tensor), f"{one}: returned {type(value).__name__}, expected tensors")
    return answer


def numerics(context: Context, op: Op) -> Numerics:
    """What is claimed of the op's arithmetic."""
    name = context.claims.accumulator.get(op.name)
    return Numerics(getattr(torch, name) if name else None, context.claims.subnormals == "preserve")


def judge(context: Context, one: Trial, got: Sequence[torch.Tensor]) -> Comparison:
    """Compare with the reference; the headroom goes into the context's measurements.

    Raises:
        Violation: a form or a value is wrong; with inputs, got, expected and bound.
    """
    wanted, bounds = expected(one.op, one.args, one.dtype, numerics(context, one.op))
    try:
        check_form(one.op, got, wanted, one.dtype)
    except AssertionError as error:
        raise Violation(f"{one}: {error}", **one.named()) from error
    found = compare(one.op, got, wanted, bounds, one.dtype)
    context.measured["headroom"] = max(context.measured.get("headroom", 0.0), min(found.ratio, WORST))
    if not found.passed:
        at = [arg.name for arg in one.op.returns].index(found.result)
        message = f"{one}: '{found.result}' is off by {found.error:.3g}, {found.bound:.3g} is the bound"
        raise Violation(message, **one.named(), got=got[at], expected=wanted[at], bound=bounds[at])
    return found


def verify(context: Context, one: Trial, *, shift: int = 0) -> None:
    """Run and judge."""
    judge(context, one, run(context, one, shift=shift))


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equal byte for byte, so that not a number equals itself and -0 is not 0."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    first, second = (value.contiguous().flatten().view(torch.uint8) for value in (one, other))
    return torch.equal(first, second)


__all__ = ["call", "judge", "launch", "numerics", "on_host", "run", "same_bits", "verify"]
