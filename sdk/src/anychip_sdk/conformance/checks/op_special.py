"""Not a number, infinity, zeros with a sign, subnormal numbers, ties. Knows what IEEE arithmetic makes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from anychip_sdk.conformance.context import Context
from anychip_sdk.conformance.requirements import Case, Violation, expect, requirement
from anychip_sdk.conformance.trial import op_cases
from anychip_sdk.conformance.trial.op_cases import per_op
from anychip_sdk.conformance.trial.oracle import judge, run, same_bits, verify
from anychip_sdk.conformance.trial.trials import Trial, resolved, trial

Planter = Callable[[list[Any], float], None]

#: ops that only move values, so that every bit must arrive
MOVERS = ("embedding", "kv_write", "select_rows")


def _first_rows(args: list[Any], largest: float) -> None:
    """Not a number in the first row, infinity in the second: a row's result depends on that row alone."""
    args[0][0, 1] = torch.nan
    args[0][1, 0] = torch.inf


def _not_a_number(args: list[Any], largest: float) -> None:
    args[0][0, ..., 1] = torch.nan


def _pairs(args: list[Any], largest: float) -> None:
    """Every special value with every other, and sums and products that don't fit the dtype."""
    values = (torch.nan, torch.inf, -torch.inf, 0.0, -0.0, largest, -largest, 1.0)
    pairs = torch.tensor([(x, y) for x in values for y in values], dtype=torch.float64)
    for value, column in zip(args, pairs.unbind(1), strict=True):
        value.view(-1)[: len(column)] = column.to(value.dtype)


def _activation(args: list[Any], largest: float) -> None:
    """-infinity is left out: 0 and not a number are both common answers."""
    args[0][0, :4] = torch.tensor((torch.nan, torch.inf, 100.0, -20.0), dtype=torch.float64).to(args[0].dtype)


def _mover(args: list[Any], largest: float) -> None:
    for value in args:
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            row = torch.tensor((torch.nan, torch.inf, -torch.inf, -0.0, largest), dtype=torch.float64)
            value[0, ..., :5] = row.to(value.dtype)


def _bias(args: list[Any], largest: float) -> None:
    args[3][:2] = -torch.inf
    args[0][args[1][2], args[2][2]] = torch.nan


def _banned(args: list[Any], largest: float) -> None:
    args[0][:, ::2] = -torch.inf


PLANTERS: Mapping[str, Planter] = {
    "add": _pairs,
    "mul": _pairs,
    "silu": _activation,
    "gelu": _activation,
    "silu_mul": _activation,
    "gelu_mul": _activation,
    "linear": _first_rows,
    "linear_int4": _first_rows,
    "linear_int8": _first_rows,
    "lm_head": _first_rows,
    "lm_head_int8": _first_rows,
    "ffn": _not_a_number,
    "rms_norm": _not_a_number,
    "add_rms_norm": _not_a_number,
    "rope": _not_a_number,
    "qk_norm_rope": _not_a_number,
    "paged_attention": _not_a_number,
    "argmax": _banned,
    "sample": _banned,
    "apply_logit_bias": _bias,
    **dict.fromkeys(MOVERS, _mover),
}


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
    cases=per_op(only=tuple(sorted(PLANTERS))),
)
def special_values_pass_through(context: Context, case: Case) -> None:
    op = case.params["op"]
    one = trial(context, op, case.params["dtype"], op_cases.usual(op))
    args = _clones(one)
    PLANTERS[op](args, torch.finfo(one.dtype).max)
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
    text="Among equal logits, argmax MUST take the lowest id, whatever the vocabulary's size.",
    cases=per_op(only=("argmax",)),
)
def ties_go_to_the_lowest_id(context: Context, case: Case) -> None:
    for vocab in (1, 2, 33, 301, 4099):
        one = trial(context, "argmax", case.params["dtype"], {"rows": 4, "vocab": vocab})
        logits = one.args[0].clone()
        logits[0], logits[1] = 1.0, -torch.inf
        logits[2, vocab // 3 :: max(1, vocab // 5)] = 50.0
        logits[3, vocab - 1] = logits[3, vocab // 2] = 60.0
        verify(context, resolved(context, "argmax", one.dtype, (logits,), one.sizes))


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
    "PLANTERS",
    "draws_follow_the_distribution",
    "special_values_pass_through",
    "subnormals_are_as_claimed",
    "ties_go_to_the_lowest_id",
    "zeros_keep_their_sign",
]
