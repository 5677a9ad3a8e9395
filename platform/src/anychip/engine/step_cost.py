"""How long a step may be expected to take, for the watch over the worker. Knows plans and speeds; knows no batch.

A step is taken to cost what one of nothing but decodes costs with the pool full, and a time for each prompt token. Both
are what the plan predicts by the device's measured speeds, or what the warm-up took, whichever is more: nobody shall be
taken to hang who is only slower than predicted.
"""

from __future__ import annotations

from typing import NamedTuple

import structlog

from anychip.engine.pace import Pace
from anychip.forecast.costs import StepShape, costs_of
from anychip.forecast.speeds import Subject, find_speeds
from anychip.plan.plan import Plan
from anychip_sdk.backend import Backend
from anychip_sdk.errors import AnychipError

log = structlog.get_logger("anychip.engine")


class StepCost(NamedTuple):
    """Seconds.

    Attributes:
        decodes_s: of a step in which as many sequences decode as run at once, with the pool full.
        token_s: that each prompt token adds.
    """

    decodes_s: float = 0.0
    token_s: float = 0.0

    def of(self, prompt_tokens: int) -> float:
        return self.decodes_s + prompt_tokens * self.token_s

    def at_least(self, other: StepCost) -> StepCost:
        return StepCost(max(self.decodes_s, other.decodes_s), max(self.token_s, other.token_s))


def predicted_cost(plan: Plan, backend: Backend, library: str | None) -> StepCost:
    """By the speeds that this machine knows of the device; nothing where it knows none.

    Args:
        plan: which is run.
        backend: that runs it.
        library: the path of the shared object, where the backend is one.
    """
    try:
        known = find_speeds(Subject(backend, plan.backend.device, plan.backend.threads, library))
    except AnychipError as error:
        log.warning("the device's speeds can't be read; steps are watched by the warm-up's", reason=str(error))
        return StepCost()
    if known.speeds is None:
        return StepCost()
    scheduler, costs = plan.scheduler, costs_of(plan)
    running, chunk = scheduler.max_running_requests.value, scheduler.chunked_prefill_size.value
    full = StepShape(running, context=scheduler.kv_tokens // running)
    last = StepShape(0, prompt=chunk, start=max(0, plan.model.context_length.value - chunk))
    return StepCost(costs.seconds(known.speeds, full).total, costs.seconds(known.speeds, last).total / chunk)


def measured_cost(plan: Plan, pace: Pace) -> StepCost:
    """By the steps of the warm-up, which decode one sequence and read short prompts.

    Further sequences cost at most what as many prompt tokens do, and reading the full pool what weights of its size do.
    """
    memory, running = plan.memory, plan.scheduler.max_running_requests.value
    reading_s = pace.decode_s * (1 + memory.kv_pool / max(memory.weights, 1))
    return StepCost(reading_s + running * pace.token_s, pace.token_s)


__all__ = ["StepCost", "measured_cost", "predicted_cost"]
