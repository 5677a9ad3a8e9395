"""Whether a backend's registrations are true: who serves an op, what is refused and why. Knows no kernel's values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from anychip_sdk.conformance.claims import Claims
from anychip_sdk.conformance.context import Context
from anychip_sdk.conformance.requirements import Case, Level, Violation, expect, requirement
from anychip_sdk.conformance.trial import op_cases
from anychip_sdk.conformance.trial.op_cases import HEAD_OPS, Sizes, per_op
from anychip_sdk.conformance.trial.oracle import call, judge, same_bits, verify
from anychip_sdk.conformance.trial.placing import check_places, placed
from anychip_sdk.conformance.trial.trials import Trial, trial
from anychip_sdk.hooks import PreparedWeight
from anychip_sdk.ops.base import CATALOGUE
from anychip_sdk.registry import REFERENCE, Fact, Need, OpKey, dtype_name

#: what no op of the catalogue computes in
STRANGE = (torch.int8, torch.int64, torch.bool, torch.complex64)
WITH_WEIGHTS = tuple(name for name in sorted(CATALOGUE) if CATALOGUE[name].weights)


@requirement(
    "AC-OP-015",
    level="MUST",
    text="Preparing a weight MUST leave the weight as it is, MUST state the bytes that it takes, and what a kernel "
    "computes with it MUST equal the reference on the plain weight, each time it is prepared.",
    covers=("hook:anychip_prepare_weight",),
    cases=per_op(only=WITH_WEIGHTS),
)
def prepared_weights_are_equivalent(context: Context, case: Case) -> None:
    one = trial(context, case.params["op"], case.params["dtype"], op_cases.usual(case.params["op"]))
    for name in one.op.weights:
        value = one.named()[name]
        if isinstance(value, torch.Tensor):
            _check_prepared(context, one, name, value)
    results = []
    for _ in range(2):
        with placed(context, one) as where:
            check_places(one, where)
            results.append(call(context, one, where))
        judge(context, one, results[-1])
    for first, second in zip(*results, strict=True):
        expect(same_bits(first, second), f"{one}: two preparations of the same weights give different results")


@requirement(
    "AC-OP-020",
    level="MUST",
    text="A kernel MUST be right on everything that its stated requirements accept, and MUST NOT raise there.",
    cases=per_op(),
)
def accepted_facts_are_served(context: Context, case: Case) -> None:
    op, dtype = case.params["op"], case.params["dtype"]
    generator = context.generator("facts")
    for number in range(context.scaled(6, 24)):
        sizes = _random_sizes(op, generator)
        verify(context, trial(context, op, dtype, sizes, number, strided=number % 2 == 0))


@requirement(
    "AC-OP-021",
    level="MUST",
    text="What no kernel is right for MUST be refused before it is launched, each refusal with its reason.",
    cases=per_op(),
)
def refusals_have_reasons(context: Context, case: Case) -> None:
    op = CATALOGUE[case.params["op"]]
    registry = context.backend.ops
    for dtype in STRANGE:
        key = OpKey(op.name, op.version, dtype)
        found = registry.resolve(key, {})
        taken = "" if found is None else f"{found.provider}/{found.kernel.name}"
        expect(found is None, f"{key}: {taken} accepts a dtype that the op can't be computed in")
        for one in registry.reject_all(key, {}):
            expect(bool(one.reason.strip()), f"{key}: {one.provider}/{one.kernel} is refused without a reason")
    for kernel in registry.kernels(op.name):
        for fact, need in kernel.requires.items():
            _check_need(f"{op.name}: {kernel.provider}/{kernel.name} requires {fact}", need)


def _own_cases(claims: Claims, level: Level) -> Iterator[Case]:
    """Each op once, claimed or not: what isn't claimed must not be registered either."""
    for name in sorted(CATALOGUE):
        yield Case(name.replace("_", "-"), {"op": name})


@requirement(
    "AC-OP-022",
    level="MUST",
    text="Each claimed op and dtype MUST be served by a kernel of the backend's own, not by the fallback, and each "
    "registered kernel's dtypes MUST be claimed.",
    covers=("hook:anychip_register_ops",),
    cases=_own_cases,
)
def claims_and_kernels_agree(context: Context, case: Case) -> None:
    op = CATALOGUE[case.params["op"]]
    registered = {
        dtype_name(dtype)
        for kernel in context.backend.ops.kernels(op.name)
        if kernel.provider != REFERENCE
        for dtype in kernel.dtypes
    }
    claimed = set(context.claims.ops.get(op.name, ()))
    missing, extra = sorted(claimed - registered), sorted(registered - claimed)
    expect(not missing, f"op {op.name}: claimed for {', '.join(missing)}, but the backend has no kernel of its own")
    expect(not extra, f"op {op.name}: a kernel is registered for {', '.join(extra)}, which is not claimed: not tested")
    for dtype in sorted(claimed):
        one = trial(context, op.name, dtype, op_cases.usual(op.name))
        message = f"op {op.name} {dtype}: claimed, but the fallback serves it at the usual sizes {dict(one.sizes)}"
        expect(one.kernel.provider == context.backend.name, message)
    context.fallbacks.discard(op.name)


def _check_prepared(context: Context, one: Trial, name: str, value: torch.Tensor) -> None:
    """The hook's answer for one weight, whether the kernel asks for it or not."""
    on_device = value.to(context.device.torch_device, copy=True)
    prepared = context.backend.prepare_weight(f"check.{name}", on_device, one.op.name, context.device)
    expect(isinstance(prepared, PreparedWeight), f"{one.op.name}: {name} was prepared into {prepared!r}")
    label = f"{one.op.name} {dtype_name(one.dtype)}: '{name}' of {value.nbytes} bytes"
    expect(same_bits(on_device.cpu(), value), f"{label}: preparing it changed the weight itself", weight=value)
    expect(bool(prepared.layout), f"{label}: the prepared layout has no name")
    held = _bytes_of(prepared.value)
    if held is not None:
        expect(held == prepared.nbytes, f"{label}: prepared, it takes {held} bytes, {prepared.nbytes} are stated")
    plausible = value.nbytes // 16 <= prepared.nbytes <= 8 * value.nbytes + (1 << 16)
    expect(plausible, f"{label}: {prepared.nbytes} bytes are stated for its prepared form")


def _bytes_of(value: Any) -> int | None:
    """The bytes of plain tensors; None for what only the backend can measure."""
    if isinstance(value, torch.Tensor):
        return value.nbytes if value.layout == torch.strided else None
    if isinstance(value, (tuple, list)):
        parts = [_bytes_of(part) for part in value]
        return None if None in parts else sum(part for part in parts if part is not None)
    return None


def _check_need(label: str, need: Need) -> None:
    strange: tuple[Fact, ...] = (None, "text", -1, 0, 2.5, True)
    expect(bool(need.text.strip()), f"{label}: without a text that says what")
    for fact in strange:
        try:
            answer = need.test(fact)
        except Exception as error:
            raise Violation(
                f"{label}: its test raises {type(error).__name__} for the fact {fact!r}: {error}"
            ) from error
        expect(isinstance(answer, bool), f"{label}: its test says {answer!r} for the fact {fact!r}, expected a bool")


def _random_sizes(op: str, generator: torch.Generator) -> Sizes:
    """Sizes that nobody has tuned for."""

    def between(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (1,), generator=generator))

    if op not in HEAD_OPS:
        rows, vocab = between(1, 9), between(2, 90)
        tokens = between(1, min(20, rows * vocab))
        widths = {name: between(1, 90) for name in ("hidden", "inner", "out")}
        return {"rows": rows, "vocab": vocab, "tokens": tokens, **widths}
    kv_heads, page_size, context = between(1, 3), between(1, 31), between(1, 60)
    return {
        "kv_heads": kv_heads,
        "heads": kv_heads * between(1, 5),
        "head_dim": 2 * between(4, 68),
        "page_size": page_size,
        "context_max": context,
        "pages": 12 + 5 * -(-context // page_size),
        "tokens": between(1, 12),
        "hidden": 2 * between(1, 40),
        "window": between(1, 30) * between(0, 1),
    }


__all__: list[str] = []
