"""Backends and engines that are wrong in one way each, for the tracks graph and e2e. Knows no check's inside.

The suite's selftest loads this module where the platform is installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

import torch

from anychip.engine.scheduler import Scheduler
from anychip.graph.codegen import generate
from anychip.graph.ir import ModelGraph
from anychip_sdk import ops
from anychip_sdk.conformance.mutants import HealthyPlugin, healthy, healthy_claims, mutant
from anychip_sdk.fusion import Fusion
from anychip_sdk.hooks import CompileContext, hookimpl
from anychip_sdk.kv import SlabKVPool
from anychip_sdk.ops import CATALOGUE, AttentionBatch
from anychip_sdk.registry import KernelFunction

Tensor = torch.Tensor
CLAIMS = replace(healthy_claims(), dtypes=("float32",))
#: kernels of parts, so that the parts are what runs
PARTS = ("ffn", "mha")


def exact(op: str) -> Callable[..., Any]:
    """The reference."""
    return CATALOGUE[op].reference


class PartsPlugin(HealthyPlugin):
    """Healthy, without kernels for whole blocks."""

    def kernels(self) -> dict[str, KernelFunction]:
        return {op: kernel for op, kernel in super().kernels().items() if op not in PARTS}


PARTS_CLAIMS = replace(
    CLAIMS,
    ops={op: dtypes for op, dtypes in CLAIMS.ops.items() if op not in PARTS},
    fusions=tuple(name for name in CLAIMS.fusions if name not in PARTS),
)


def _swiglu(gate: Tensor, up: Tensor) -> Any:
    return ops.mul(ops.silu(gate), up)


def _joined(gate: Tensor, up: Tensor) -> Any:
    return ops.silu_mul(gate, up)


class FusingPlugin(HealthyPlugin):
    """Healthy, with a fusion and a compiler of its own."""

    fusions = (Fusion("silu_mul", "own_swiglu", _swiglu, _joined, ("silu_mul",)),)

    @hookimpl
    def anychip_compile(self, graph: torch.fx.Graph, context: CompileContext) -> Callable[..., Any]:
        return generate(ModelGraph(graph, torch.nn.Module()), context.values).forward


healthy("AC-GRAPH-007", FusingPlugin, CLAIMS)
healthy("AC-GRAPH-010", FusingPlugin, CLAIMS)


# graph


@mutant("AC-GRAPH-001", claims=CLAIMS)
class NormsForgetEps(HealthyPlugin):
    """rms_norm adds no eps, which only small values show."""

    replaced: ClassVar[Mapping[str, KernelFunction]] = {
        "rms_norm": lambda x, weight, eps: exact("rms_norm")(x, weight, 0.0)
    }


@mutant("AC-GRAPH-002", claims=CLAIMS)
class FusedMlpHasUpFirst(HealthyPlugin):
    """The fused MLP reads the joined weight one row further."""

    replaced: ClassVar[Mapping[str, KernelFunction]] = {
        "ffn": lambda x, gate_up, *rest: exact("ffn")(x, gate_up.roll(1, 0), *rest)
    }


@mutant("AC-GRAPH-002", claims=CLAIMS)
class FusedNormReturnsParts(HealthyPlugin):
    """The fused norm normalises before it adds."""

    replaced: ClassVar[Mapping[str, KernelFunction]] = {
        "add_rms_norm": lambda x, y, weight, eps: (exact("rms_norm")(x, weight, eps), x + y)
    }


@mutant("AC-GRAPH-002", claims=CLAIMS)
class FusedAttentionScalesOtherwise(HealthyPlugin):
    """The fused attention block's scale is off by two per cent."""

    replaced: ClassVar[Mapping[str, KernelFunction]] = {
        "mha": lambda *args: exact("mha")(*args[:15], args[15] * 1.02, *args[16:])
    }


def _views_are_off(gate: Tensor, up: Tensor) -> Tensor:
    out: Tensor = exact("silu_mul")(gate, up)
    return out if gate.is_contiguous() else out * 1.01


@mutant("AC-GRAPH-003", claims=PARTS_CLAIMS)
class FusionsDisturbEachOther(PartsPlugin):
    """A fused activation is wrong where another fusion has made its operands views."""

    replaced: ClassVar[Mapping[str, KernelFunction]] = {"silu_mul": _views_are_off}


@mutant("AC-GRAPH-004", claims=CLAIMS)
class FusionFindsItsOwnResult(HealthyPlugin):
    """A fusion matches what it has made, so that it never ends."""

    fusions = (Fusion("add_rms_norm", "circular", ops.add, lambda x, y: ops.add(y, x)),)


def _with_activation(gate: Tensor, up: Tensor) -> Any:
    active = ops.silu(gate)
    return ops.mul(active, up), active


@mutant("AC-GRAPH-005", claims=CLAIMS)
class FusionGivesTheWrongIntermediate(HealthyPlugin):
    """A fusion's second result, which only a second user reads, is another value."""

    fusions = (
        Fusion("silu_mul", "leaky", _with_activation, lambda gate, up: (ops.silu_mul(gate, up), gate), ("silu_mul",)),
    )


def _two_norms(
    q: Tensor, k: Tensor, nq: Tensor, nk: Tensor, eps_q: float, eps_k: float, positions: Tensor, table: Tensor
) -> Any:
    q, k = ops.rope(ops.rms_norm(q, nq, eps_q), ops.rms_norm(k, nk, eps_k), positions, table)
    return q, k


def _one_eps(
    q: Tensor, k: Tensor, nq: Tensor, nk: Tensor, eps_q: float, eps_k: float, positions: Tensor, table: Tensor
) -> Any:
    q, k = ops.qk_norm_rope(q, k, nq, nk, eps_q, positions, table)
    return q, k


@mutant("AC-GRAPH-006", claims=CLAIMS)
class FusionIgnoresOneEps(HealthyPlugin):
    """A fusion takes one of two eps for both norms."""

    fusions = (Fusion("qk_norm_rope", "careless", _two_norms, _one_eps, ("qk_norm_rope",)),)


@mutant("AC-GRAPH-006", claims=CLAIMS)
class FusedNormHasItsOwnEps(HealthyPlugin):
    """An eps is built into a fused kernel."""

    replaced: ClassVar[Mapping[str, KernelFunction]] = {
        "add_rms_norm": lambda x, y, weight, eps: exact("add_rms_norm")(x, y, weight, 1e-3)
    }


@mutant("AC-GRAPH-007", claims=CLAIMS)
class FusionHidesWhatItNeeds(HealthyPlugin):
    """A fusion introduces an op that its needs do not name."""

    fusions = (Fusion("silu_mul", "silent", _swiglu, _joined),)


@mutant("AC-GRAPH-008", claims=CLAIMS)
class ClaimedFusionsStopMatching(PartsPlugin):
    """The kernels of two claimed fusions are gone."""


@mutant("AC-GRAPH-009", claims=replace(CLAIMS, fusions=()))
class FusionsAreNotClaimed(HealthyPlugin):
    """Fusions apply that nobody claims, so that losing them would not show."""


@mutant("AC-GRAPH-010", claims=CLAIMS)
class CompiledGraphsKeepTheirAnswer(HealthyPlugin):
    """A captured graph replays its first answer, whatever its inputs are."""

    @hookimpl
    def anychip_compile(self, graph: torch.fx.Graph, context: CompileContext) -> Callable[..., Any]:
        forward = generate(ModelGraph(graph, torch.nn.Module()), context.values).forward
        kept: list[Any] = []

        def replay(*inputs: Any) -> Any:
            kept.append(kept[0] if kept else forward(*inputs))
            return kept[0]

        return replay


# end to end


def _attention(change: Callable[[AttentionBatch], AttentionBatch]) -> KernelFunction:
    """The reference over a batch that was changed first."""

    def kernel(
        q: Tensor, k_cache: Tensor, v_cache: Tensor, batch: AttentionBatch, scale: float, window: int | None = None
    ) -> Tensor:
        out: Tensor = exact("paged_attention")(q, k_cache, v_cache, change(batch), scale, window)
        return out

    return kernel


def _neighbours(batch: AttentionBatch) -> AttentionBatch:
    if batch.rows < 2:
        return batch
    table = batch.page_table.clone()
    table[-1] = table[0]
    return replace(batch, page_table=table, derived={})


def _rolled(batch: AttentionBatch) -> AttentionBatch:
    if batch.page_size > 1:
        return batch
    return replace(batch, page_table=batch.page_table.roll(1, 1), derived={})


def _own_chunk(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, batch: AttentionBatch, scale: float, window: int | None = None
) -> Tensor:
    out: Tensor = exact("paged_attention")(q, k_cache, v_cache, batch, scale, window)
    start = 0
    for length, context in zip(batch.query_lens_host, batch.context_lens_host, strict=True):
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
        for page in pages:
            self._slab[:, :, page] = 0
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


def _keys_alone(k_cache: Tensor, v_cache: Tensor, src: Tensor, dst: Tensor) -> Any:
    exact("copy_pages")(k_cache, v_cache.clone(), src, dst)
    return k_cache, v_cache


@mutant("AC-E2E-009", claims=CLAIMS)
class ForksShareNoValues(HealthyPlugin):
    """A fork's page gets the keys of its origin and not the values."""

    replaced: ClassVar[Mapping[str, KernelFunction]] = {"copy_pages": _keys_alone}


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

    Scheduler._accept = counted  # type: ignore[method-assign]  # for as long as this mutant is judged
    try:
        yield
    finally:
        Scheduler._accept = accept  # type: ignore[method-assign]


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


__all__ = ["FusingPlugin", "PartsPlugin"]
