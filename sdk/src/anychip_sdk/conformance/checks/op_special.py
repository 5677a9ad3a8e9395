"""Not a number, infinity, zeros with a sign, subnormal numbers, ties. Knows what IEEE arithmetic makes of them."""

from __future__ import annotations

from typing import Any

import torch

from anychip_sdk.conformance.context import Context
from anychip_sdk.conformance.requirements import Case, Violation, expect, requirement
from anychip_sdk.conformance.trial import op_cases
from anychip_sdk.conformance.trial.op_cases import per_op
from anychip_sdk.conformance.trial.oracle import judge, run, same_bits, verify
from anychip_sdk.conformance.trial.trials import Trial, resolved, trial
from anychip_sdk.ops import CATALOGUE
from anychip_sdk.testing.bounds import has_own_dtype

#: ops that only move values, so that every bit must arrive
MOVERS = tuple(name for name, op in CATALOGUE.items() if op.error.kind == "exact" and has_own_dtype(op))
#: ops whose arithmetic says what becomes of special values
SPECIAL = tuple(name for name, op in sorted(CATALOGUE.items()) if op.checks is not None and op.checks.special)


def _keep_of(chances: torch.Tensor, top_k: int, top_p: float, min_p: float) -> torch.Tensor:
    """The distribution behind the filters, told anew: `chances` fall, top-k, then the smallest set that reaches p."""
    kept = chances[:top_k] if top_k else chances
    kept = kept / kept.sum()
    if top_p < 1:
        reached = int((kept.cumsum(0) < top_p).sum()) + 1
        allowed = torch.arange(len(kept)) < reached
    else:
        allowed = torch.ones(len(kept), dtype=torch.bool)
    allowed &= kept >= min_p * kept[0]
    kept = torch.where(allowed, kept, 0.0)
    return kept / kept.sum()


#: (temperature, top_k, top_p, min_p)
FILTERS = ((1.0, 0, 1.0, 0.0), (0.7, 0, 1.0, 0.0), (1.3, 5, 1.0, 0.0), (1.0, 0, 0.8, 0.0), (1.0, 0, 1.0, 0.1))


@requirement(
    "AC-OP-016",
    level="MUST",
    text="Over evenly spread random numbers, sample MUST draw each token as often as its probability behind "
    "temperature, top-k, top-p and min-p says.",
    cases=per_op(only=("sample",)),
)
def draws_follow_the_distribution(context: Context, case: Case) -> None:
    rows, vocab = 2000, 40
    logits = torch.randn(vocab, generator=context.generator(), dtype=torch.float64).mul(2).float()
    ordered, ids = logits.double().sort(descending=True)
    spread = (torch.arange(rows, dtype=torch.float64) + 0.5) / rows
    for temperature, top_k, top_p, min_p in FILTERS:
        settings = ((temperature, torch.float32), (top_k, torch.int64), (top_p, torch.float32), (min_p, torch.float32))
        columns = [torch.full((rows,), value, dtype=dtype) for value, dtype in settings]
        args = (logits.expand(rows, -1).contiguous(), *columns, spread)
        one = resolved(context, "sample", getattr(torch, case.params["dtype"]), args, {"vocab": vocab})
        drawn = torch.bincount(run(context, one)[0], minlength=vocab).double() / rows
        wanted = torch.zeros(vocab, dtype=torch.float64)
        kept = _keep_of((ordered / temperature).softmax(0), top_k, top_p, min_p)
        wanted[ids[: len(kept)]] = kept
        off = (drawn - wanted).abs()
        # a token's share of an even grid is right to one point at each end
        if float(off.max()) > 2.5 / rows:
            at = int(off.argmax())
            what = f"temperature {temperature}, top_k {top_k}, top_p {top_p}, min_p {min_p}"
            message = f"{one}: with {what}, token {at} was drawn {drawn[at]:.4f} of the time, expected {wanted[at]:.4f}"
            raise Violation(message, logits=logits, got=drawn, expected=wanted)


@requirement(
    "AC-OP-006",
    level="MUST",
    text="Not a number and infinity MUST come out exactly where the reference has them, and sums that don't fit the "
    "dtype as infinity.",
    cases=per_op(only=SPECIAL),
)
def special_values_pass_through(context: Context, case: Case) -> None:
    op = case.params["op"]
    one = trial(context, op, case.params["dtype"], op_cases.usual(op))
    args = _clones(one)
    checks = CATALOGUE[op].checks
    assert checks is not None
    assert checks.special is not None
    checks.special(args, torch.finfo(one.dtype).max)
    planted = resolved(context, op, one.dtype, args, one.sizes)
    got = run(context, planted)
    judge(context, planted, got)
    if op in MOVERS:
        _expect_bits(planted, got)


@requirement(
    "AC-OP-007",
    level="MUST",
    text="Subnormal numbers MUST be kept, or may become zero in arithmetic where the claims say flush; moving values "
    "MUST keep them always.",
    cases=per_op(only=("add", "mul", "silu", *MOVERS)),
)
def subnormals_are_as_claimed(context: Context, case: Case) -> None:
    op = case.params["op"]
    one = trial(context, op, case.params["dtype"], op_cases.usual(op))
    args = _clones(one)
    info = torch.finfo(one.dtype)
    for index, value in enumerate(args):
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            steps = torch.arange(1, value.numel() + 1).view(value.shape) % int(1 / info.eps)
            small = steps.double() * info.smallest_normal * info.eps
            value.copy_(torch.full_like(small, 2.0) if op == "mul" and index == 1 else small)
    planted = resolved(context, op, one.dtype, args, one.sizes)
    got = run(context, planted)
    judge(context, planted, got)
    if op in MOVERS:
        _expect_bits(planted, got)


@requirement(
    "AC-OP-008",
    level="MUST",
    text="Zeros MUST keep the sign that IEEE arithmetic gives them.",
    cases=per_op(only=("add", "mul", *MOVERS)),
)
def zeros_keep_their_sign(context: Context, case: Case) -> None:
    op = case.params["op"]
    one = trial(context, op, case.params["dtype"], op_cases.usual(op))
    args = _clones(one)
    for index, value in enumerate(args):
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            signs = torch.arange(value.numel()).view(value.shape) // (1 + index) % 2
            value.copy_(torch.where(signs == 0, -0.0, 0.0))
    planted = resolved(context, op, one.dtype, args, one.sizes)
    got = run(context, planted)
    _expect_bits(planted, got)


@requirement(
    "AC-OP-009",
    level="MUST",
    text="Among equal logits, argmax and router_topk MUST take the lowest id first, whatever the number of logits.",
    cases=per_op(only=("argmax", "router_topk")),
)
def ties_go_to_the_lowest_id(context: Context, case: Case) -> None:
    if case.params["op"] == "router_topk":
        _experts_tie(context, getattr(torch, case.params["dtype"]))
        return
    for vocab in (1, 2, 33, 301, 4099):
        one = trial(context, "argmax", case.params["dtype"], {"rows": 4, "vocab": vocab})
        logits = one.args[0].clone()
        logits[0], logits[1] = 1.0, -torch.inf
        logits[2, vocab // 3 :: max(1, vocab // 5)] = 50.0
        logits[3, vocab - 1] = logits[3, vocab // 2] = 60.0
        verify(context, resolved(context, "argmax", one.dtype, (logits,), one.sizes))


def _experts_tie(context: Context, dtype: torch.dtype) -> None:
    """Whole numbers, whose sums are exact in any order, and each expert there twice."""
    for experts, top_k in ((6, 3), (34, 4), (130, 9)):
        x = torch.randint(-2, 3, (7, 16), generator=context.generator()).to(dtype)
        half = torch.randint(-1, 2, (experts // 2, 16), generator=context.generator()).to(dtype)
        plain = (top_k, "logits", 1, 1, "max", "softmax", 0.0, 1.0, None, 0)
        args = (x, torch.cat((half, half)), None, None, *plain)
        verify(context, resolved(context, "router_topk", dtype, args, {"hidden": 16, "tokens": 7}))


def _clones(one: Trial) -> list[Any]:
    return [value.clone() if isinstance(value, torch.Tensor) else value for value in one.args]


def _expect_bits(one: Trial, got: tuple[torch.Tensor, ...]) -> None:
    """Equal to the reference in the op's own dtype, bit for bit."""
    given = [value.clone() if isinstance(value, torch.Tensor) else value for value in one.args]
    wanted = one.op.reference(*given)
    for arg, value, want in zip(one.op.returns, got, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        expect(value.shape == want.shape, f"{one}: '{arg.name}' is {list(value.shape)}, expected {list(want.shape)}")
        if not same_bits(value, want):
            message = f"{one}: '{arg.name}' has other bits than the reference: a sign, or a number that is none"
            raise Violation(message, **one.named(), got=value, expected=want)


__all__ = [
    "MOVERS",
    "SPECIAL",
    "draws_follow_the_distribution",
    "special_values_pass_through",
    "subnormals_are_as_claimed",
    "ties_go_to_the_lowest_id",
    "zeros_keep_their_sign",
]
