"""Whole blocks of a layer from this backend's own kernels: fewer graph nodes, fewer passes. Knows no model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from anychip_cpu.kernels import attention as attention_kernels
from anychip_cpu.kernels import rope
from anychip_cpu.kernels.attention import AttentionStep, NativeAttention
from anychip_cpu.kernels.cache import write
from anychip_cpu.kernels.rows import NO_NORMS, Norms, Pair, Rows, Turn
from anychip_sdk.registry import Facts, Prepare
from anychip_sdk.step import Step, StepLimits

#: x, a weight as it was prepared, a bias
Multiply = Callable[[torch.Tensor, Any, "torch.Tensor | None"], torch.Tensor]


class Ffn:
    """The gated MLP."""

    def __init__(self, multiply: Multiply, rows: Rows) -> None:
        self._multiply = multiply
        self._gate = rows.gated("silu_mul")

    def __call__(
        self,
        x: torch.Tensor,
        gate_up_weight: torch.Tensor,
        gate_up_bias: torch.Tensor | None,
        down_weight: torch.Tensor,
        down_bias: torch.Tensor | None,
    ) -> torch.Tensor:
        gate, up = self._multiply(x, gate_up_weight, gate_up_bias).chunk(2, dim=-1)
        return self._multiply(self._gate(gate, up), down_weight, down_bias)


class MhaStep(NamedTuple):
    """What a step's attention blocks need in each layer."""

    attention: AttentionStep
    angles: rope.Angles | None  #: None: the library turns queries and keys by the table itself


class Mha:
    """The attention block: queries and keys are normalised and turned as the one tensor that they come in."""

    def __init__(self, multiply: Multiply, attention: NativeAttention, rows: Rows) -> None:
        self._multiply = multiply
        self._attention = attention
        self._rows = rows
        self.prepare = Prepare(self._make, facts=attention_kernels.FACTS, constants=("table",))

    def _make(self, facts: Facts, constants: Mapping[str, Any], limits: StepLimits) -> Callable[[Step], MhaStep]:
        attend = self._attention.make(facts, {}, limits)
        heads, table = attention_kernels.heads_of(facts), constants["table"]
        is_native = attention_kernels.is_kept_in(facts) and self._rows.will_prepare(heads.dtype, heads.head_dim)

        def prepare(step: Step) -> MhaStep:
            return MhaStep(attend(step), None if is_native else rope.angles(step.positions, table))

        return prepare

    def __call__(
        self,
        x: torch.Tensor,
        qkv_weight: torch.Tensor,
        qkv_bias: torch.Tensor | None,
        q_norm: torch.Tensor | None,
        k_norm: torch.Tensor | None,
        eps: float,
        table: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        prepared: MhaStep,
        out_weight: torch.Tensor,
        out_bias: torch.Tensor | None,
        heads: int,
        scale: float,
        window: int | None = None,
        group: int = 0,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        step = prepared.attention.step
        kv_heads, head_dim = k_cache.shape[2:]
        qkv = self._multiply(x, qkv_weight, qkv_bias).view(-1, heads + 2 * kv_heads, head_dim)
        norms = NO_NORMS if q_norm is None or k_norm is None else Norms((q_norm, k_norm, None), eps)
        turn, caches, slots = Turn(step.positions, table), (k_cache, v_cache), step.paged(group).slots
        if self._rows.can_prepare(qkv, norms, turn, caches, slots):
            q = self._rows.prepare(qkv, heads, norms, turn, caches, slots)
        else:
            angles = rope.angles(*turn) if prepared.angles is None else prepared.angles
            q = _prepare(qkv, heads, norms, angles, caches, slots)
        mixed = self._attention(q, k_cache, v_cache, prepared.attention, scale, window, group)
        return self._multiply(mixed.flatten(1), out_weight, out_bias), k_cache, v_cache


def _prepare(
    qkv: torch.Tensor, heads: int, norms: Norms, angles: rope.Angles, caches: Pair, slots: torch.Tensor
) -> torch.Tensor:
    """`Rows.prepare` in torch."""
    kv_heads = caches[0].shape[2]
    both, v = qkv.split((heads + kv_heads, kv_heads), dim=1)
    q_norm, k_norm, _ = norms.weights
    weights = None if q_norm is None or k_norm is None else rope.Norms(heads, q_norm, k_norm, norms.eps)
    parts: tuple[torch.Tensor, ...] = rope.turned(both, angles, weights).split((heads, kv_heads), dim=1)
    q, k = parts
    write(k, v, *caches, slots)
    return q


def plain(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """The product with a weight as it was loaded."""
    return functional.linear(x, weight, bias)


__all__ = ["Ffn", "Mha", "MhaStep", "plain"]
