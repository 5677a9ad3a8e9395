"""Backends whose fusions or fused kernels are wrong in one way each. Knows no check's inside."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch

from anychip.graph.codegen import Compiled
from anychip_sdk import ops
from anychip_sdk.conformance.mutants import HealthyPlugin, healthy, healthy_claims, mutant, with_argument
from anychip_sdk.fusion import Fusion
from anychip_sdk.hooks import CompileContext, hookimpl
from anychip_sdk.ops import CATALOGUE
from anychip_sdk.program import Program, interpret
from anychip_sdk.registry import KernelFunction

Tensor = torch.Tensor
CLAIMS = replace(healthy_claims(), dtypes=("float32",))
#: kernels of parts, so that the parts are what runs
PARTS = ("ffn", "mha")


def exact(op: str) -> Callable[..., Tensor]:
    """The reference, typed as those of most ops are: with one result."""
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
    def anychip_compiles(self, program: Program) -> list[str | None]:
        return [None] * len(program.calls)

    @hookimpl
    def anychip_compile(self, program: Program, context: CompileContext) -> Compiled:
        return interpret(program, context.values, context.limits)


healthy("AC-GRAPH-007", FusingPlugin, CLAIMS)


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
        "mha": lambda *args: exact("mha")(*with_argument("mha", args, scale=lambda scale: scale * 1.02))
    }


def _views_are_off(gate: Tensor, up: Tensor) -> Tensor:
    out: Tensor = exact("silu_mul")(gate, up)
    return out if gate.is_contiguous() else out * 1.01


@mutant("AC-GRAPH-003", claims=PARTS_CLAIMS)
class FusionsDisturbEachOther(PartsPlugin):
    """A fused activation is wrong where another fusion has made its operands views."""

    replaced: ClassVar[Mapping[str, KernelFunction]] = {"silu_mul": _views_are_off}


def _turned(gate: Tensor, up: Tensor) -> Any:
    return ops.silu_mul(up, gate)


@mutant("AC-GRAPH-002", claims=replace(CLAIMS, fusions=("own_gate",)))
class FusionOfItsOwnPolicyIsWrong(HealthyPlugin):
    """A fusion under a policy of the backend's own has its operands the wrong way round."""

    fusions = (Fusion("own_gate", "turned", _swiglu, _turned, ("silu_mul",)),)


@mutant("AC-GRAPH-003", claims=replace(PARTS_CLAIMS, fusions=(*PARTS_CLAIMS.fusions, "own_gate")))
class FusionSpoilsABuiltInResult(PartsPlugin):
    """A fusion of the backend's own is wrong about what a built-in one has made."""

    fusions = (Fusion("own_gate", "turned", _joined, _turned, ("silu_mul",)),)


def _sum(x: Tensor, y: Tensor) -> Any:
    return ops.add(x, y)


@mutant("AC-GRAPH-004", claims=CLAIMS)
class FusionFindsItsOwnResult(HealthyPlugin):
    """A fusion matches what it has made, so that it never ends."""

    fusions = (Fusion("add_rms_norm", "circular", _sum, lambda x, y: ops.add(y, x)),)


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
    q: Tensor, k: Tensor, nq: Tensor, nk: Tensor, eps_q: float, eps_k: float, step: Any, table: Tensor
) -> Any:
    q, k = ops.rope(ops.rms_norm(q, nq, eps_q), ops.rms_norm(k, nk, eps_k), step, table)
    return q, k


def _one_eps(q: Tensor, k: Tensor, nq: Tensor, nk: Tensor, eps_q: float, eps_k: float, step: Any, table: Tensor) -> Any:
    q, k = ops.qk_norm_rope(q, k, nq, nk, eps_q, step, table)
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


@mutant("AC-GRAPH-009", claims=CLAIMS)
class OwnPolicyIsNotClaimed(HealthyPlugin):
    """A fusion under a policy of the backend's own applies, and nobody claims it."""

    fusions = (Fusion("own_gate", "own_swiglu", _swiglu, _joined, ("silu_mul",)),)


__all__ = ["CLAIMS", "PARTS_CLAIMS", "FusingPlugin", "PartsPlugin", "exact"]
