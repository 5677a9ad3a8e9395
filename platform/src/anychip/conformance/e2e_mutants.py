"""Backends and engines that serve wrong answers in one way each. Knows no check's inside."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

import torch

from anychip.conformance.graph_mutants import CLAIMS, PARTS_CLAIMS, PartsPlugin, exact
from anychip.engine.scheduler import Scheduler
from anychip_sdk.conformance.mutants import HealthyPlugin, mutant
from anychip_sdk.kv import SlabKVPool
from anychip_sdk.registry import KernelFunction
from anychip_sdk.step import Paged, Step

Tensor = torch.Tensor


def _attention(change: Callable[[Step, int], Tensor]) -> KernelFunction:
    """The reference over another page table."""

    def kernel(
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        step: Step,
        scale: float,
        window: int | None = None,
        group: int = 0,
        *rest: Any,
    ) -> Tensor:
        groups = list(step.groups)
        groups[group] = Paged(change(step, group), step.paged(group).slots)
        changed = replace(step, groups=tuple(groups))
        out: Tensor = exact("paged_attention")(q, k_cache, v_cache, changed, scale, window, group, *rest)
        return out

    return kernel


def _neighbours(step: Step, group: int) -> Tensor:
    table = step.paged(group).page_table
    if step.rows > 1:
        table = table.clone()
        table[-1] = table[0]
    return table


def _rolled(step: Step, group: int) -> Tensor:
    table = step.paged(group).page_table
    return table if step.page_size > 1 else table.roll(1, 1)


def _own_chunk(q: Tensor, k_cache: Tensor, v_cache: Tensor, step: Step, *rest: Any) -> Tensor:
    out: Tensor = exact("paged_attention")(q, k_cache, v_cache, step, *rest)
    start = 0
    for length, context in zip(step.query_lens_host, step.context_lens_host, strict=True):
        if 1 < length < context:
            out[start : start + length] *= 0.9
        start += length
    return out


@mutant("AC-E2E-001", claims=CLAIMS)
class ServedNormsForgetEps(HealthyPlugin):
    """Norms of a served model add no eps."""

    replaced: ClassVar[Mapping[str, KernelFunction]] = {
        "rms_norm": lambda x, weight, eps: exact("rms_norm")(x, weight, 0.0)
    }


@mutant("AC-E2E-002", claims=PARTS_CLAIMS)
class AttentionReadsItsNeighbour(PartsPlugin):
    """The last sequence of a step reads the first one's pages."""

    replaced: ClassVar[Mapping[str, KernelFunction]] = {"paged_attention": _attention(_neighbours)}


@mutant("AC-E2E-003", claims=PARTS_CLAIMS)
class AttentionForgetsEarlierChunks(PartsPlugin):
    """A chunk weighs what came before it too lightly."""

    replaced: ClassVar[Mapping[str, KernelFunction]] = {"paged_attention": _own_chunk}


@mutant("AC-E2E-004", "AC-E2E-006", claims=CLAIMS)
class FreedPagesAreWiped(SlabKVPool):
    """A page is wiped when one of its holders lets go."""

    def free(self, pages: Sequence[int]) -> None:
        for index, group in enumerate(self.groups):
            for layer in range(group.layers):
                for tensor in self.tensors(index, layer):
                    tensor[list(pages)] = 0
        super().free(pages)


def _fives(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    out: Tensor = exact("linear")(x, weight, bias)
    return out if len(x) == 1 or len(x) % 5 else torch.cat((out[:-1], out[:1]))


@mutant("AC-E2E-005", claims=PARTS_CLAIMS)
class BatchesOfFiveAreWrong(PartsPlugin):
    """In batches of a multiple of five rows the last one is the first one's."""

    replaced: ClassVar[Mapping[str, KernelFunction]] = {"linear": _fives}


@mutant("AC-E2E-007", claims=PARTS_CLAIMS)
class FusedActivationSwapsItsOperands(PartsPlugin):
    """The fused activation goes over up; nothing else in serving runs it."""

    replaced: ClassVar[Mapping[str, KernelFunction]] = {"silu_mul": lambda gate, up: exact("silu_mul")(up, gate)}


@mutant("AC-E2E-008", claims=PARTS_CLAIMS)
class PagesOfOneTokenAreShifted(PartsPlugin):
    """With one token per page the table is read one place further."""

    replaced: ClassVar[Mapping[str, KernelFunction]] = {"paged_attention": _attention(_rolled)}


@mutant("AC-E2E-009", claims=CLAIMS)
class ForksShareNoValues(SlabKVPool):
    """A fork's page gets the keys of its origin and not the values."""

    def copy_pages(self, src: Sequence[int], dst: Sequence[int]) -> None:
        for index, group in enumerate(self.groups):
            for layer in range(group.layers):
                keys, *_ = self.tensors(index, layer)
                keys[list(dst)] = keys[list(src)]


@mutant("AC-E2E-010", claims=CLAIMS)
class BiasesGoToTheFirstRow(HealthyPlugin):
    """Every request's bias is added to the first row's logits."""

    replaced: ClassVar[Mapping[str, KernelFunction]] = {
        "apply_logit_bias": lambda logits, rows, *rest: exact("apply_logit_bias")(logits, torch.zeros_like(rows), *rest)
    }


@mutant("AC-E2E-011", claims=CLAIMS)
class AbortedPagesStay(SlabKVPool):
    """The first page of each request is never free again."""

    def free(self, pages: Sequence[int]) -> None:
        super().free(pages[1:])


@contextmanager
def _counting_twice() -> Iterator[None]:
    accept = Scheduler._accept

    def counted(self: Scheduler, *args: Any) -> Any:
        self._counters.completion_tokens += 1
        return accept(self, *args)

    engine: Any = Scheduler
    engine._accept = counted
    try:
        yield
    finally:
        engine._accept = accept


@mutant("AC-E2E-012", claims=CLAIMS, around=_counting_twice)
class CompletionTokensCountTwice(HealthyPlugin):
    """The engine counts each token twice in its totals."""


@mutant("AC-E2E-013", claims=CLAIMS)
class TextsRunOn(HealthyPlugin):
    """A bias does nothing, so that a forced end never comes."""

    replaced: ClassVar[Mapping[str, KernelFunction]] = {"apply_logit_bias": lambda logits, *rest: logits}


class _Draws:
    """A sample that is another token in every 50th draw."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, *args: Tensor) -> Tensor:
        self.calls += 1
        drawn: Tensor = exact("sample")(*args)
        return drawn ^ 1 if self.calls % 50 == 0 else drawn


@mutant("AC-E2E-014", claims=CLAIMS)
class DrawsDifferNowAndThen(HealthyPlugin):
    """The same seed draws another token once in 50 times."""

    replaced: ClassVar[Mapping[str, KernelFunction]] = {"sample": _Draws()}


__all__: list[str] = []
