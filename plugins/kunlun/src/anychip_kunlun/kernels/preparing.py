"""What kernels take in the place of a step, made once before the forward. Knows steps; calls no vendor op."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from anychip_kunlun.kernels.attention import AttentionPlan, plan_attention
from anychip_kunlun.kernels.rope import Turn, turn
from anychip_sdk.registry import Facts, Prepare
from anychip_sdk.step import Step, StepLimits

Constants = Mapping[str, Any]


class BlockStep(NamedTuple):
    """What a whole attention block takes."""

    turn: Turn
    slots: torch.Tensor
    attention: AttentionPlan


def _attention(facts: Facts, constants: Constants, limits: StepLimits) -> Callable[[Step], AttentionPlan]:
    group = _group(facts)
    return lambda step: plan_attention(step, group)


def _turns(facts: Facts, constants: Constants, limits: StepLimits) -> Callable[[Step], Turn]:
    table: torch.Tensor = constants["table"]
    return lambda step: turn(step.positions, table)


def _slots(facts: Facts, constants: Constants, limits: StepLimits) -> Callable[[Step], torch.Tensor]:
    """The ops count slots in int32."""
    group = _group(facts)
    return lambda step: step.paged(group).slots.to(torch.int32)


def _block(facts: Facts, constants: Constants, limits: StepLimits) -> Callable[[Step], BlockStep]:
    turns, slots = _turns(facts, constants, limits), _slots(facts, constants, limits)
    attention = _attention(facts, constants, limits)
    return lambda step: BlockStep(turns(step), slots(step), attention(step))


def _group(facts: Facts) -> int:
    group = facts["group"]
    assert isinstance(group, int)
    return group


ATTENTION = Prepare(_attention, facts=("group",))
TURNS = Prepare(_turns, constants=("table",))
SLOTS = Prepare(_slots, facts=("group",))
BLOCK = Prepare(_block, facts=("group",), constants=("table",))

__all__ = ["ATTENTION", "BLOCK", "SLOTS", "TURNS", "BlockStep"]
