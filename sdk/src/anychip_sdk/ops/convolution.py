"""A causal convolution over each sequence's tokens, the last of which a slot keeps (Gu and Dao, 2023).

Knows slots; knows no prefix cache. A token is computed from its row's slot and the tokens before it, so its result is
the same wherever a chunk begins.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from anychip_sdk.ops.attention import STEP_ARG
from anychip_sdk.ops.base import Arg, accurate, cancelling, op
from anychip_sdk.ops.cases import Args, Case
from anychip_sdk.ops.checks import Checks, Terms
from anychip_sdk.step import Step

SLOT_GROUP = Arg("group", dtype="int", doc="which of the step's groups of states the slots belong to")
HISTORY = Arg("history", ("slots", "taps", "channels"), "float32", state=True, doc="the last tokens, the oldest first")


class Span(NamedTuple):
    """A row of a step: its slot and its tokens."""

    slot: int
    start: int
    stop: int


def spans(step: Step, group: int) -> list[Span]:
    """The rows of a step over a group of slots."""
    found, start = [], 0
    for slot, count in zip(step.slotted(group).slots.tolist(), step.query_lens_host, strict=True):
        found.append(Span(slot, start, start + count))
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


def _seen(x: torch.Tensor, history: torch.Tensor, step: Step, group: int) -> Iterator[tuple[Span, torch.Tensor]]:
    """Each row, and its tokens behind what its slot holds: [taps + tokens, channels]."""
    exact = accurate(x.dtype)
    for row in spans(step, group):
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
    SLOT_GROUP,
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
        for at, total in enumerate(_convolved(seen, weight, bias), start=row.start):
            out[at] = functional.silu(total).to(x.dtype)  # each by itself: longer vectors may round in another way
        history[row.slot] = seen[row.stop - row.start :].to(history.dtype)
    return out, history


@causal_conv_silu.mistake
def _conv_pads_each_chunk(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, history: torch.Tensor, step: Step, group: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """A chunk begins as a sequence does, with zeros before its first token."""
    for row in spans(step, group):
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
    for row in spans(step, group):
        if row.stop - row.start == 1:
            history[row.slot] = before[row.slot]
            history[row.slot, 0] = x[row.start].to(history.dtype)
    return out, kept


__all__ = ["SLOT_GROUP", "Span", "causal_conv_silu", "spans"]
