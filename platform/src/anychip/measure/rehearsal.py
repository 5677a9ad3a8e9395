"""Bring an engine to a step of a given shape at once, and time it. Knows requests and a clock; knows no kernel."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import torch

from anychip.engine.core import EngineCore
from anychip.engine.loader import LoadedModel
from anychip.engine.request import GenerateRequest, SamplingParams, TokenEvent
from anychip.forecast.costs import StepShape
from anychip.graph.codegen import Forward
from anychip_sdk.step import Step

PAGE_MAX = 128  #: tokens of a page, of which each request may fill the last one in part


def tokens_held(step: StepShape, count: int, chunk: int) -> int:
    """What the pool must hold for so many steps like that, prompts being read in chunks of that size."""
    each = step.context + _steps_before(step, chunk) + count + PAGE_MAX
    return step.start + step.prompt + PAGE_MAX + step.decodes * each


def _steps_before(step: StepShape, chunk: int) -> int:
    """Until all prompts are in the cache; those that are first decode meanwhile."""
    return step.decodes * (step.context // chunk + 1)


class Rehearsal:
    """An engine whose forward can be left out, so that prompts are in the cache at once.

    What the cache holds then is whatever was in the pool: how long a step takes depends on how much is read, not on the
    numbers. Steps that are timed are whole ones of the engine, greedy, and their forward is never left out.
    """

    def __init__(self, model: LoadedModel) -> None:
        self._forward = _Skippable(model.forward, model.plan.model.config.vocab_size)
        self.core = EngineCore(replace(model, forward=self._forward))
        self._scheduler = model.plan.scheduler
        self._number = 0

    def time(self, step: StepShape, count: int) -> Iterator[tuple[StepShape, float]]:
        """Steps like that, with the mean context that they really had, and their seconds."""
        steps = self._decodes(step, count) if step.decodes else (self._prompt(step) for _ in range(count))
        try:
            yield from steps
        finally:
            self.core.fail_all("the rehearsal is over")
            self.core.flush_cache()

    def _decodes(self, step: StepShape, count: int) -> Iterator[tuple[StepShape, float]]:
        chunk = self._scheduler.chunked_prefill_size.value
        for _ in range(step.decodes):
            self._add(step.context, _steps_before(step, chunk) + count + 1)
        events: list[TokenEvent] = []
        self._forward.is_skipped = True
        while len(events) < step.decodes:
            events = self.core.step()
        self._forward.is_skipped = False
        for _ in range(count):
            events, taken_s = self._step()
            written = sum(event.completion_tokens for event in events)
            yield replace(step, context=step.context + written // step.decodes - 1), taken_s

    def _prompt(self, step: StepShape) -> tuple[StepShape, float]:
        chunk = self._scheduler.chunked_prefill_size.value
        self._add(step.start + step.prompt, 1)
        self._forward.is_skipped = True
        for _ in range(step.start // chunk):
            self.core.step()
        self._forward.is_skipped = False
        return step, self._step()[1]

    def _step(self) -> tuple[list[TokenEvent], float]:
        began_s = time.perf_counter()
        events = self.core.step()
        return events, time.perf_counter() - began_s

    def _add(self, prompt_tokens: int, tokens_max: int) -> None:
        self._number += 1  # begins each prompt differently, so that nothing is shared
        prompt = [self._number, *[0] * (prompt_tokens - 1)]
        params = SamplingParams(temperature=0.0, max_tokens=tokens_max, ignore_eos=True)
        self.core.add(GenerateRequest(f"rehearsal-{self._number}", prompt, params))


class _Skippable:
    def __init__(self, forward: Forward, vocab_size: int) -> None:
        self._forward = forward
        self._vocab_size = vocab_size
        self.is_skipped = False

    def __call__(self, step: Step) -> torch.Tensor:
        if not self.is_skipped:
            return self._forward(step)
        wanted = step.logit_rows
        return torch.zeros(len(wanted), self._vocab_size, device=wanted.device)


__all__ = ["Rehearsal", "tokens_held"]
