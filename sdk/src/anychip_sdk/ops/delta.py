"""The gated delta rule over a state per sequence in a slot (Yang et al., 2024).

Knows slots; knows no prefix cache. A token is computed from the state that the tokens before it leave, one after the
other, so its result is the same wherever a chunk begins.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from anychip_sdk.ops import cases
from anychip_sdk.ops.attention import STEP_ARG
from anychip_sdk.ops.base import Arg, accurate, cancelling, op
from anychip_sdk.ops.cases import Args, Case
from anychip_sdk.ops.checks import Checks, Terms
from anychip_sdk.ops.convolution import SLOT_GROUP, Span, spans
from anychip_sdk.step import Step

SUMS = Arg("sums", ("slots", "value_heads", "key_dim", "value_dim"), "float32", state=True)
KEYS = ("tokens", "key_heads", "key_dim")
VALUES = ("tokens", "value_heads", "value_dim")
PER_HEAD = ("tokens", "value_heads")


class _Token(NamedTuple):
    """What one token brings to each value head: q, k and v [value_heads, ...], decay and share [value_heads, 1]."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    decay: torch.Tensor  #: what is left of the state
    share: torch.Tensor  #: how far what a key reads moves to the value


class _Tokens(NamedTuple):
    """The op's arguments but for the state.

    Each token is computed by itself: functions of vectors may round an element by its place in a longer one.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    a: torch.Tensor
    b: torch.Tensor
    a_log: torch.Tensor
    dt_bias: torch.Tensor
    eps: float

    def at(self, token: int) -> _Token:
        exact = accurate(self.v.dtype)
        repeats = self.v.shape[1] // self.k.shape[1]
        q, k = (self._unit(x[token].to(exact)).repeat_interleave(repeats, dim=0) for x in (self.q, self.k))
        pace = self.a[token].to(exact) + self.dt_bias.to(exact)
        time = torch.logaddexp(pace, torch.zeros_like(pace))
        decay = torch.exp(-torch.exp(self.a_log.to(exact)) * time)
        share = torch.sigmoid(self.b[token].to(exact))
        v = self.v[token].to(exact)
        return _Token(q * q.shape[-1] ** -0.5, k, v, decay.unsqueeze(-1), share.unsqueeze(-1))

    def _unit(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + self.eps)


def _moved(tokens: _Tokens, sums: torch.Tensor, row: Span) -> Iterator[tuple[int, _Token, torch.Tensor]]:
    """Each of a row's tokens, and the state [value_heads, key_dim, value_dim] behind it."""
    for at in range(row.start, row.stop):
        token = tokens.at(at)
        k = token.k.unsqueeze(-1)
        sums = sums * token.decay.unsqueeze(-1)
        change = token.share * (token.v - (sums * k).sum(1))
        sums = sums + k * change.unsqueeze(1)
        yield at, token, sums


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
    tokens = _Tokens(q, k, v, a, b, a_log, dt_bias, eps)
    depth = sums.shape[2] ** 0.5
    out, kept = torch.zeros_like(v), torch.zeros_like(sums)
    for row in spans(step, group):
        size = sums[row.slot].square().sum(1).sqrt()
        added = torch.zeros_like(size)
        for at, token, moved in _moved(tokens, sums[row.slot], row):
            after = moved.square().sum(1).sqrt()
            added = added + (depth * (size + after) + token.v.abs()).square()
            size = after
            out[at] = token.q.square().sum(-1, keepdim=True).sqrt() * (added.sqrt() + depth * size)
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
    SLOT_GROUP,
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
    tokens = _Tokens(q, k, v, a, b, a_log, dt_bias, eps)
    out = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    for row in spans(step, group):
        for at, token, moved in _moved(tokens, sums[row.slot].to(accurate(v.dtype)), row):
            out[at] = (moved * token.q.unsqueeze(-1)).sum(1)
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
    tokens = _Tokens(q, k, v, a, b, a_log, dt_bias, eps)
    out = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    for row in spans(step, group):
        moved = sums[row.slot].to(accurate(v.dtype))
        for at in range(row.start, row.stop):
            token = tokens.at(at)
            key = token.k.unsqueeze(-1)
            change = token.share * (token.v - (moved * key).sum(1))
            moved = moved * token.decay.unsqueeze(-1) + key * change.unsqueeze(1)
            out[at] = (moved * token.q.unsqueeze(-1)).sum(1)
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


__all__ = ["gated_delta_rule"]
