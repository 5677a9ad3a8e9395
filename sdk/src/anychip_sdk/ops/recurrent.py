"""Layers that keep one state per sequence in a slot: a causal convolution, and the gated delta rule.

Knows slots; knows no prefix cache. A token is computed from the state that the tokens before it leave, one after the
other, so its result is the same wherever a chunk begins.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from anychip_sdk.ops import cases
from anychip_sdk.ops.attention import STEP_ARG
from anychip_sdk.ops.base import Arg, accurate, cancelling, op
from anychip_sdk.ops.cases import Args, Case
from anychip_sdk.ops.checks import Checks, Terms
from anychip_sdk.step import Step

GROUP = Arg("group", dtype="int", doc="which of the step's groups of states the slots belong to")
HISTORY = Arg("history", ("slots", "taps", "channels"), "float32", state=True, doc="the last tokens, the oldest first")
SUMS = Arg("sums", ("slots", "value_heads", "key_dim", "value_dim"), "float32", state=True)
KEYS = ("tokens", "key_heads", "key_dim")
VALUES = ("tokens", "value_heads", "value_dim")
PER_HEAD = ("tokens", "value_heads")


class _Span(NamedTuple):
    """A row of a step: its slot and its tokens."""

    slot: int
    start: int
    stop: int


def _spans(step: Step, group: int) -> list[_Span]:
    """The rows of a step over a group of slots."""
    found, start = [], 0
    for slot, count in zip(step.slotted(group).slots.tolist(), step.query_lens_host, strict=True):
        found.append(_Span(slot, start, start + count))
        start += count
    return found


def _conv_case(case: Case) -> Args:
    step = case.slotted_step()
    channels, taps = case["channels"], case["taps"]
    x = case.floats(step.tokens, channels + (7 if case.strided else 0))[:, :channels]
    weight = case.floats(channels, taps + 1, scale=(taps + 1) ** -0.5)
    return x, weight, case.vector(channels), case.slots(step, taps, channels, dtype=case.dtype), step, 0


def _conv_terms(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, history: torch.Tensor, step: Step, group: int = 0
) -> list[Terms | None]:
    """silu is at most 1.1 times as steep as its argument."""
    out = torch.zeros_like(x)
    for row, seen in _seen(x.abs(), history.abs(), step, group):
        out[row.start : row.stop] = _convolved(seen, weight.abs(), None if bias is None else bias.abs())
    return [Terms(out * weight.shape[1] ** 0.5), Terms(torch.zeros_like(history))]


def _seen(x: torch.Tensor, history: torch.Tensor, step: Step, group: int) -> Iterator[tuple[_Span, torch.Tensor]]:
    """Each row, and its tokens behind what its slot holds: [taps + tokens, channels]."""
    exact = accurate(x.dtype)
    for row in _spans(step, group):
        yield row, torch.cat((history[row.slot].to(exact), x[row.start : row.stop].to(exact)))


def _convolved(seen: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """[tokens, channels] of [taps + tokens, channels]."""
    kernel = weight.shape[1]
    columns = weight.to(seen.dtype).unbind(1)
    total = columns[0] * seen[: len(seen) - kernel + 1]
    for at, column in enumerate(columns[1:], start=1):
        total = total + column * seen[at : len(seen) - kernel + 1 + at]
    return total if bias is None else total + bias.to(seen.dtype)


def _plant_in_tokens(args: list[Any], largest: float) -> None:
    """Not a number in the first row's token, infinity in the second's: other rows stay as they are."""
    args[0][0, ..., 1] = torch.nan
    args[0][1, ..., 0] = torch.inf


@op(
    Arg("x", ("tokens", "channels"), doc="may be a strided view"),
    Arg("weight", ("channels", "kernel"), weight=True, doc="the last column is the token's own"),
    Arg("bias", ("channels",), optional=True, weight=True),
    dataclasses.replace(HISTORY, mutated=True),
    STEP_ARG,
    GROUP,
    returns=(Arg("out", ("tokens", "channels")), HISTORY),
    error=cancelling(4),
    checks=Checks(_conv_case, _plant_in_tokens, _conv_terms),
)
def causal_conv_silu(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, history: torch.Tensor, step: Step, group: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """silu of each channel convolved over its own tokens: silu(bias + sum_j weight[:, j] * x[t - taps + j]).

    What is before a row's first token stands in its slot, zeros where the sequence begins; the row's last `taps`
    tokens replace it. kernel is taps + 1.
    """
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    for row, seen in _seen(x, history, step, group):
        out[row.start : row.stop] = functional.silu(_convolved(seen, weight, bias)).to(x.dtype)
        history[row.slot] = seen[row.stop - row.start :].to(history.dtype)
    return out, history


@causal_conv_silu.mistake
def _conv_pads_each_chunk(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, history: torch.Tensor, step: Step, group: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """A chunk begins as a sequence does, with zeros before its first token."""
    for row in _spans(step, group):
        history[row.slot] = 0
    out, kept = causal_conv_silu.reference(x, weight, bias, history, step, group)
    return out, kept


@causal_conv_silu.mistake
def _conv_forgets_behind_one_token(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, history: torch.Tensor, step: Step, group: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """A row of one token writes it over the oldest one, and moves no other."""
    before = history.clone()
    out, kept = causal_conv_silu.reference(x, weight, bias, history, step, group)
    for row in _spans(step, group):
        if row.stop - row.start == 1:
            history[row.slot] = before[row.slot]
            history[row.slot, 0] = x[row.start].to(history.dtype)
    return out, kept


class _Inputs(NamedTuple):
    """What each token brings, for each value head: q, k, v [tokens, value_heads, ...], decay, share [tokens, ...]."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    decay: torch.Tensor  #: what is left of the state
    share: torch.Tensor  #: how far a key's value moves to the token's


def _inputs(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    eps: float,
) -> _Inputs:
    exact = accurate(v.dtype)
    repeats = v.shape[1] // k.shape[1]
    q, k = (_unit(x.to(exact), eps).repeat_interleave(repeats, dim=1) for x in (q, k))
    time = torch.logaddexp(a.to(exact) + dt_bias.to(exact), torch.zeros((), dtype=exact, device=a.device))
    decay = torch.exp(-torch.exp(a_log.to(exact)) * time)
    return _Inputs(q * q.shape[-1] ** -0.5, k, v.to(exact), decay, torch.sigmoid(b.to(exact)))


def _unit(x: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + eps)


def _moved(inputs: _Inputs, sums: torch.Tensor, row: _Span) -> Iterator[tuple[int, torch.Tensor]]:
    """Each of a row's tokens, and the state [value_heads, key_dim, value_dim] behind it."""
    for token in range(row.start, row.stop):
        sums = sums * inputs.decay[token][:, None, None]
        k = inputs.k[token].unsqueeze(-1)
        change = inputs.share[token].unsqueeze(-1) * (inputs.v[token] - (sums * k).sum(1))
        sums = sums + k * change.unsqueeze(1)
        yield token, sums


def _delta_case(case: Case) -> Args:
    step = case.slotted_step()
    tokens, heads = step.tokens, case["value_heads"]
    sizes = (case["key_heads"] * case["key_dim"],) * 2 + (heads * case["value_dim"],)
    if case.strided:
        parts = case.floats(tokens, sum(sizes)).split(sizes, dim=-1)
    else:
        parts = tuple(case.floats(tokens, size) for size in sizes)
    q, k, v = (part.unflatten(1, (-1, dim)) for part, dim in zip(parts, _dims(case), strict=True))
    a, b = case.floats(tokens, heads), case.floats(tokens, heads)
    a_log = case.uniform(heads, low=-4.0, high=2.0, dtype=torch.float32)
    dt_bias = case.uniform(heads, low=-1.0, high=1.5, dtype=torch.float32)
    sums = case.slots(step, heads, case["key_dim"], case["value_dim"], scale=0.5)
    return q, k, v, a, b, a_log, dt_bias, sums, step, cases.EPS, 0


def _dims(case: Case) -> tuple[int, int, int]:
    return case["key_dim"], case["key_dim"], case["value_dim"]


def _delta_terms(*args: Any) -> list[Terms]:
    """A token's step enlarges no error of earlier ones: the decay is at most 1, and so is what 1 - share k k' does.

    So a column's error is at most what its steps add, each a sum over the keys of a column of the state.
    """
    q, k, v, a, b, a_log, dt_bias, sums, step, eps, group = args
    inputs = _inputs(q, k, v, a, b, a_log, dt_bias, eps)
    depth = sums.shape[2] ** 0.5
    out, kept = torch.zeros_like(inputs.v), torch.zeros_like(sums)
    for row in _spans(step, group):
        size = sums[row.slot].square().sum(1).sqrt()
        added = torch.zeros_like(size)
        for token, moved in _moved(inputs, sums[row.slot], row):
            after = moved.square().sum(1).sqrt()
            added = added + (depth * (size + after) + inputs.v[token].abs()).square()
            size = after
            out[token] = inputs.q[token].square().sum(-1, keepdim=True).sqrt() * (added.sqrt() + depth * size)
        kept[row.slot] = added.sqrt().unsqueeze(1)
    return [Terms(out), Terms(kept)]


def _plant_in_keys(args: list[Any], largest: float) -> None:
    """Not a number in a query, a key and a value of different rows: the rows' own tokens and slots alone show it."""
    args[0][0, ..., 1] = torch.nan
    args[1][1, ..., 0] = torch.nan
    args[2][2, ..., 1] = torch.nan


@op(
    Arg("q", KEYS, doc="may be a strided view, as k and v may"),
    Arg("k", KEYS),
    Arg("v", VALUES),
    Arg("a", PER_HEAD, doc="how fast the state decays"),
    Arg("b", PER_HEAD, doc="how much of a value is written"),
    Arg("a_log", ("value_heads",), "float32", weight=True),
    Arg("dt_bias", ("value_heads",), "float32", weight=True),
    dataclasses.replace(SUMS, mutated=True),
    STEP_ARG,
    Arg("eps", dtype="float", doc="of the keys' and queries' length"),
    GROUP,
    returns=(Arg("out", VALUES), SUMS),
    error=cancelling(8),
    checks=Checks(_delta_case, _plant_in_keys, _delta_terms),
)
def gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    sums: torch.Tensor,
    step: Step,
    eps: float,
    group: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gated DeltaNet (Yang et al., 2024), token by token, for each value head with the key head h // repeats.

    q and k are brought to length 1, q then divided by sqrt(key_dim). With S a head's state:
    S *= exp(-exp(a_log) * softplus(a + dt_bias)); S += k (sigmoid(b) * (v - S' k))'; out = S' q.
    """
    inputs = _inputs(q, k, v, a, b, a_log, dt_bias, eps)
    out = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    for row in _spans(step, group):
        for token, moved in _moved(inputs, sums[row.slot].to(inputs.v.dtype), row):
            out[token] = (moved * inputs.q[token].unsqueeze(-1)).sum(1)
        sums[row.slot] = moved.to(sums.dtype)
    return out, sums


@gated_delta_rule.mistake
def _delta_reads_before_it_decays(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    sums: torch.Tensor,
    step: Step,
    eps: float,
    group: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What a key reads is the state before the decay."""
    inputs = _inputs(q, k, v, a, b, a_log, dt_bias, eps)
    out = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    for row in _spans(step, group):
        moved = sums[row.slot].to(inputs.v.dtype)
        for token in range(row.start, row.stop):
            key = inputs.k[token].unsqueeze(-1)
            change = inputs.share[token].unsqueeze(-1) * (inputs.v[token] - (moved * key).sum(1))
            moved = moved * inputs.decay[token][:, None, None] + key * change.unsqueeze(1)
            out[token] = (moved * inputs.q[token].unsqueeze(-1)).sum(1)
        sums[row.slot] = moved.to(sums.dtype)
    return out, sums


@gated_delta_rule.mistake
def _delta_rounds_its_state(*args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The state is kept in bfloat16."""
    out, sums = gated_delta_rule.reference(*args)
    sums.copy_(sums.bfloat16())
    return out, sums


@gated_delta_rule.mistake
def _delta_spreads_key_heads(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any) -> Any:
    """Value head h has the key head h % key_heads."""
    repeats = v.shape[1] // k.shape[1]
    return gated_delta_rule.reference(q.repeat(1, repeats, 1), k.repeat(1, repeats, 1), v, *rest)


__all__ = ["causal_conv_silu", "gated_delta_rule"]
