"""Ops on rows, heads and elements in the native library. Knows its structs; leaves to torch what it can't do."""

from __future__ import annotations

import struct
from typing import NamedTuple

import torch

from anychip_cpu import native
from anychip_cpu.kernels import cache, elementwise, norm, rope, sampling

#: the structs of rows.hpp
_NORM = struct.Struct("=5Q5qdq")
_HEADS = struct.Struct("=" + 3 * "3Q6q2i" + "3Q4qd4i")
_GATED = struct.Struct("=3Q5q2i")
_ARGMAX = struct.Struct("=2Q4q")
_SILU, _GELU = 0, 1
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
    ) -> None:
        assert self._library is not None
        dim = x.shape[-1]
        self._library.norm(
            _NORM.pack(
                x.data_ptr(),
                0 if residual is None else residual.data_ptr(),
                weight.data_ptr(),
                out.data_ptr(),
                0 if total is None else total.data_ptr(),
                x.numel() // dim,
                dim,
                dim,
                dim,
                torch.get_num_threads(),
                eps,
                self._dtypes[x.dtype],
            )
        )

    def silu_mul(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return self._gated(gate, up, _SILU) if self._is_gated(gate, up) else elementwise.silu_mul(gate, up)

    def gelu_mul(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return self._gated(gate, up, _GELU) if self._is_gated(gate, up) else elementwise.gelu_mul(gate, up)

    def _is_gated(self, gate: torch.Tensor, up: torch.Tensor) -> bool:
        return gate.dtype in self._dtypes and up.dtype == gate.dtype and up.shape == gate.shape

    def _gated(self, gate: torch.Tensor, up: torch.Tensor, kind: int) -> torch.Tensor:
        assert self._library is not None
        gate, gate_stride = _strided_rows(gate)
        up, up_stride = _strided_rows(up)
        out = torch.empty(gate.shape, dtype=gate.dtype)
        dim = gate.shape[-1]
        pointers = gate.data_ptr(), up.data_ptr(), out.data_ptr()
        shape = gate.numel() // dim, dim, gate_stride, up_stride, torch.get_num_threads()
        self._library.gated(_GATED.pack(*pointers, *shape, self._dtypes[gate.dtype], kind))
        return out

    def argmax(self, logits: torch.Tensor) -> torch.Tensor:
        if self._library is None or logits.dtype != torch.float32 or logits.dim() != 2 or not logits.shape[1]:
            return sampling.argmax(logits)
        logits, stride = _strided_rows(logits)
        ids = torch.empty(logits.shape[0], dtype=torch.int64)
        shape = *logits.shape, stride, torch.get_num_threads()
        self._library.argmax(_ARGMAX.pack(logits.data_ptr(), ids.data_ptr(), *shape))
        return ids

    def rope(self, q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, table: torch.Tensor) -> Pair:
        turn = Turn(positions, table)
        if not (self.can_read(q, k) and self.can_turn(turn)):
            return rope.rope(q, k, positions, table)
        return self._turned(q, k, NO_NORMS, turn)

    def qk_norm_rope(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        q_weight: torch.Tensor,
        k_weight: torch.Tensor,
        eps: float,
        positions: torch.Tensor,
        table: torch.Tensor,
    ) -> Pair:
        turn = Turn(positions, table)
        if not (self.can_read(q, k, q_weight, k_weight) and self.can_turn(turn)):
            return rope.qk_norm_rope(q, k, q_weight, k_weight, eps, positions, table)
        return self._turned(q, k, Norms((q_weight, k_weight, None), eps), turn)

    def _turned(self, q: torch.Tensor, k: torch.Tensor, norms: Norms, turn: Turn) -> Pair:
        q_out, k_out = (torch.empty(x.shape, dtype=x.dtype) for x in (q, k))
        parts = _part(q, q_out, norms.weights[0]), _part(k, k_out, norms.weights[1]), _NO_PART
        self._heads(parts, q, norms.eps, turn, None, None)
        return q_out, k_out

    def kv_write(
        self, k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slots: torch.Tensor
    ) -> Pair:
        if not (self.can_read(k, v, k_cache, v_cache) and _is_list(slots)):
            return cache.kv_write(k, v, k_cache, v_cache, slots)
        parts = _NO_PART, _written(k, k_cache), _written(v, v_cache)
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
        q, k, v = qkv.split((heads, k_cache.shape[2], k_cache.shape[2]), dim=1)
        q_norm, k_norm, _ = norms.weights
        parts = _part(q, q, q_norm), _written(k, k_cache, k_norm, is_turned=1), _written(v, v_cache)
        self._heads(parts, q, norms.eps, turn, slots, k_cache)
        return q

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
        parts: tuple[_Part, ...],
        like: torch.Tensor,
        eps: float,
        turn: Turn | None,
        slots: torch.Tensor | None,
        cached: torch.Tensor | None,
    ) -> None:
        assert self._library is not None
        positions, table, places, rotary_dim = 0, 0, 0, 0
        if turn is not None:
            positions, table = turn.positions.data_ptr(), turn.table.data_ptr()
            places, rotary_dim = turn.table.shape
        pages, page_size = (1, 1) if cached is None else cached.shape[:2]
        failed = self._library.heads(
            _HEADS.pack(
                *parts[0],
                *parts[1],
                *parts[2],
                positions,
                0 if slots is None else slots.data_ptr(),
                table,
                like.shape[0],
                places,
                pages * page_size,
                torch.get_num_threads(),
                eps,
                self._dtypes[like.dtype],
                like.shape[-1],
                rotary_dim,
                page_size,
            )
        )
        if failed:
            message = f"native kernels: a position is not below {places}, or a slot not below {pages * page_size}"
            raise IndexError(message)


class _Part(NamedTuple):
    """HeadsPart of rows.hpp."""

    source: int
    target: int
    weight: int
    heads: int
    source_token: int
    source_head: int
    target_page: int
    target_token: int
    target_head: int
    is_turned: int
    is_cached: int


_NO_PART = _Part(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)


def _part(x: torch.Tensor, out: torch.Tensor, weight: torch.Tensor | None) -> _Part:
    """Heads [tokens, heads, head_dim] that are turned."""
    norm_weight = 0 if weight is None else weight.data_ptr()
    token, head, _ = x.stride()
    out_token, out_head, _ = out.stride()
    return _Part(x.data_ptr(), out.data_ptr(), norm_weight, x.shape[1], token, head, 0, out_token, out_head, 1, 0)


def _written(x: torch.Tensor, to: torch.Tensor, weight: torch.Tensor | None = None, is_turned: int = 0) -> _Part:
    """Heads that go to their slots in a cache."""
    norm_weight = 0 if weight is None else weight.data_ptr()
    token, head, _ = x.stride()
    page, slot, to_head, _ = to.stride()
    return _Part(x.data_ptr(), to.data_ptr(), norm_weight, x.shape[1], token, head, page, slot, to_head, is_turned, 1)


def _strided_rows(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    """x [..., dim], copied if need be, and the distance between its rows."""
    if x.dim() == 2:
        row, element = x.stride()
        if element == 1:
            return x, row
    x = x.contiguous()
    return x, x.shape[-1]


def _is_list(numbers: torch.Tensor) -> bool:
    return numbers.dtype == torch.int64 and numbers.is_contiguous()


__all__ = ["HEAD_DIM_MAX", "NO_NORMS", "Norms", "Pair", "Rows", "Turn"]
