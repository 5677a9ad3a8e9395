"""Ops on rows, heads and elements in the native library. Knows its structs; leaves to torch what it can't do."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from anychip_cpu import native
from anychip_cpu.kernels import cache, elementwise, norm, rope, row_args, sampling
from anychip_cpu.kernels.row_args import NO_PART, Part
from anychip_sdk.step import Step

HEAD_DIM_MAX = 1024

Pair = tuple[torch.Tensor, torch.Tensor]


class Turn(NamedTuple):
    """How queries and keys are turned: int64 [tokens], float32 [positions, rotary_dim]."""

    positions: torch.Tensor
    table: torch.Tensor


class Norms(NamedTuple):
    """How heads are normalised before; a weight for each part, None for those that aren't."""

    weights: tuple[torch.Tensor | None, ...]
    eps: float


NO_NORMS = Norms((None, None, None), 0.0)


class Rows:
    """One method for each op. A row's result depends on that row alone.

    Args:
        library: the native kernels; None: torch does everything.
    """

    def __init__(self, library: native.Library | None) -> None:
        self._library = library
        self._dtypes = native.DTYPES if library is not None else {}

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        if x.dtype not in self._dtypes or weight.dtype != x.dtype:
            return norm.rms_norm(x, weight, eps)
        x, weight = x.contiguous(), weight.contiguous()
        out = torch.empty_like(x)
        self._norm(x, None, weight, out, None, eps)
        return out

    def rms_norm_offset(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        if x.dtype not in self._dtypes or weight.dtype != x.dtype:
            return norm.rms_norm_offset(x, weight, eps)
        x, weight = x.contiguous(), weight.contiguous()
        out = torch.empty_like(x)
        self._norm(x, None, weight, out, None, eps, 1.0)
        return out

    def add_rms_norm(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> Pair:
        if x.dtype not in self._dtypes or not x.dtype == residual.dtype == weight.dtype or x.shape != residual.shape:
            return norm.add_rms_norm(x, residual, weight, eps)
        x, residual, weight = x.contiguous(), residual.contiguous(), weight.contiguous()
        out, total = torch.empty_like(x), torch.empty_like(x)
        self._norm(x, residual, weight, out, total, eps)
        return out, total

    def _norm(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        weight: torch.Tensor,
        out: torch.Tensor,
        total: torch.Tensor | None,
        eps: float,
        offset: float = 0.0,
    ) -> None:
        assert self._library is not None
        self._library.norm(row_args.norm(x, residual, weight, out, total, eps, offset))

    def scale(self, x: torch.Tensor, factor: float) -> torch.Tensor:
        if x.dtype not in self._dtypes:
            return elementwise.scale(x, factor)
        x = _even_rows(x)
        out = torch.empty(x.shape, dtype=x.dtype)
        assert self._library is not None
        self._library.gated(row_args.scaled(x, out, factor))
        return out

    def gated(self, name: str) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        """The kernel of one of `elementwise.GATES`."""
        in_torch, kind = elementwise.OPS[name].function, elementwise.GATES[name]

        def kernel(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
            if self._is_gated(gate, up):
                return self._gated(gate, up, kind)
            out: torch.Tensor = in_torch(gate, up)
            return out

        return kernel

    def _is_gated(self, gate: torch.Tensor, up: torch.Tensor) -> bool:
        return gate.dtype in self._dtypes and up.dtype == gate.dtype and up.shape == gate.shape

    def _gated(self, gate: torch.Tensor, up: torch.Tensor, kind: int) -> torch.Tensor:
        assert self._library is not None
        gate, up = _even_rows(gate), _even_rows(up)
        out = torch.empty(gate.shape, dtype=gate.dtype)
        self._library.gated(row_args.gated(gate, up, out, kind))
        return out

    def argmax(self, logits: torch.Tensor) -> torch.Tensor:
        if self._library is None or logits.dtype != torch.float32 or logits.dim() != 2 or not logits.shape[1]:
            return sampling.argmax(logits)
        logits = _even_rows(logits)
        ids = torch.empty(logits.shape[0], dtype=torch.int64)
        self._library.argmax(row_args.argmax(logits, ids))
        return ids

    def rope(self, q: torch.Tensor, k: torch.Tensor, step: Step, table: torch.Tensor) -> Pair:
        turn = Turn(step.positions, table)
        if not (self.can_read(q, k) and self.can_turn(turn)):
            return rope.rope(q, k, step, table)
        return self._turned(q, k, NO_NORMS, turn)

    def qk_norm_rope(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        q_weight: torch.Tensor,
        k_weight: torch.Tensor,
        eps: float,
        step: Step,
        table: torch.Tensor,
    ) -> Pair:
        turn = Turn(step.positions, table)
        if not (self.can_read(q, k, q_weight, k_weight) and self.can_turn(turn)):
            return rope.qk_norm_rope(q, k, q_weight, k_weight, eps, step, table)
        return self._turned(q, k, Norms((q_weight, k_weight, None), eps), turn)

    def _turned(self, q: torch.Tensor, k: torch.Tensor, norms: Norms, turn: Turn) -> Pair:
        q_out, k_out = (torch.empty(x.shape, dtype=x.dtype) for x in (q, k))
        parts = row_args.turned(q, q_out, norms.weights[0]), row_args.turned(k, k_out, norms.weights[1]), NO_PART
        self._heads(parts, q, norms.eps, turn, None, None)
        return q_out, k_out

    def kv_write(
        self,
        k: torch.Tensor,
        v: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        step: Step,
        group: int = 0,
    ) -> Pair:
        slots = step.paged(group).slots
        if not (self.can_read(k, v, k_cache, v_cache) and _is_list(slots)):
            return cache.write(k, v, k_cache, v_cache, slots)
        parts = NO_PART, row_args.written(k, k_cache), row_args.written(v, v_cache)
        self._heads(parts, k, 0.0, None, slots, k_cache)
        return k_cache, v_cache

    def prepare(
        self, qkv: torch.Tensor, heads: int, norms: Norms, turn: Turn, caches: Pair, slots: torch.Tensor
    ) -> torch.Tensor:
        """The queries, normalised and turned in place; the keys likewise and the values go to their slots.

        Args:
            qkv: [tokens, heads + 2 * kv_heads, head_dim], contiguous; is written.
            heads: of the queries.
            norms: of queries and keys.
            turn: of queries and keys.
            caches: of keys and values.
            slots: where each token's go.
        """
        k_cache, v_cache = caches
        parts: tuple[torch.Tensor, ...] = qkv.split((heads, k_cache.shape[2], k_cache.shape[2]), dim=1)
        q, k, v = parts
        q_norm, k_norm, _ = norms.weights
        keys, values = row_args.written(k, k_cache, k_norm, is_turned=1), row_args.written(v, v_cache)
        self._heads((row_args.turned(q, q, q_norm), keys, values), q, norms.eps, turn, slots, k_cache)
        return q

    def will_prepare(self, dtype: torch.dtype, head_dim: int) -> bool:
        """Whether the library has kernels for heads and caches of one dtype, before there are any."""
        return dtype in self._dtypes and head_dim <= HEAD_DIM_MAX

    def can_prepare(self, qkv: torch.Tensor, norms: Norms, turn: Turn, caches: Pair, slots: torch.Tensor) -> bool:
        weights = [weight for weight in norms.weights if weight is not None]
        return self.can_read(qkv, *weights, *caches) and self.can_turn(turn) and _is_list(slots)

    def can_read(self, *heads: torch.Tensor) -> bool:
        """Of one dtype that there are kernels for, each head's elements side by side."""
        dtype = heads[0].dtype
        if dtype not in self._dtypes or heads[0].shape[-1] > HEAD_DIM_MAX:
            return False
        return all(one.dtype == dtype and one.stride()[-1] == 1 for one in heads)

    def can_turn(self, turn: Turn) -> bool:
        return _is_list(turn.positions) and turn.table.dtype == torch.float32 and turn.table.is_contiguous()

    def _heads(
        self,
        parts: tuple[Part, Part, Part],
        like: torch.Tensor,
        eps: float,
        turn: Turn | None,
        slots: torch.Tensor | None,
        cached: torch.Tensor | None,
    ) -> None:
        assert self._library is not None
        positions, table = (None, None) if turn is None else turn
        if self._library.heads(row_args.heads(parts, like, eps, positions, table, slots, cached)):
            places = 0 if table is None else len(table)
            slot_count = 0 if cached is None else cached.shape[0] * cached.shape[1]
            message = f"native kernels: a position is not below {places}, or a slot not below {slot_count}"
            raise IndexError(message)


def _even_rows(x: torch.Tensor) -> torch.Tensor:
    """x [..., dim] with an even distance between its rows, copied if need be."""
    return x if x.dim() == 2 and x.stride(1) == 1 else x.contiguous()


def _is_list(numbers: torch.Tensor) -> bool:
    return numbers.dtype == torch.int64 and numbers.is_contiguous()


__all__ = ["HEAD_DIM_MAX", "NO_NORMS", "Norms", "Pair", "Rows", "Turn"]
