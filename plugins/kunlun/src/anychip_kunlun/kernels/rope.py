"""Rotary embedding on the vendor's ops, with and without the norms of queries and keys. Knows heads; knows no cache.

The ops take a table of the dtype of q, and positions into it. They get the rows of this step only, in order: to cast
the whole table in each layer would cost more than the op. A table rounded to 16 bits turns by a wrong angle, so the
plain op runs in float32; the fused one has no such choice.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from anychip_kunlun.kernels.rows import Rows
from anychip_kunlun.vendor import VendorOps

#: what the fused op of norms and rotation has built in
FUSED_EPS = 1e-6
FUSED_DTYPES = (torch.bfloat16, torch.float16)


class Turn(NamedTuple):
    """The angles of a step's tokens as the ops take them."""

    table: torch.Tensor  #: float32 [tokens, rotary_dim], cosines and sines
    positions: torch.Tensor  #: int64 [tokens]: 0, 1, 2 ...


class Norms(NamedTuple):
    q_weight: torch.Tensor
    k_weight: torch.Tensor
    eps: float


def turn(positions: torch.Tensor, table: torch.Tensor) -> Turn:
    rows = table.index_select(0, positions)
    return Turn(rows, torch.arange(len(positions), dtype=torch.int64, device=positions.device))


class Rope:
    def __init__(self, vendor: VendorOps, rows: Rows) -> None:
        self._vendor = vendor
        self._rows = rows

    def rope(
        self, q: torch.Tensor, k: torch.Tensor, by: Turn, table: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`by` was prepared of the step and the table."""
        return self.turned(q, k, by)

    def qk_norm_rope(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        q_weight: torch.Tensor,
        k_weight: torch.Tensor,
        eps: float,
        by: Turn,
        table: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self.turned(*self._normed(q, k, Norms(q_weight, k_weight, eps)), by)

    def turned(self, q: torch.Tensor, k: torch.Tensor, by: Turn) -> tuple[torch.Tensor, torch.Tensor]:
        """New tensors: the op turns in place."""
        wide_q, wide_k = (_copied(x, torch.float32) for x in (q, k))
        if q.numel():
            self._vendor.call(
                "rotary_embedding",
                positions=by.positions,
                query=wide_q.flatten(1),
                key=wide_k.flatten(1),
                head_size=q.shape[-1],
                cos_sin_cache=by.table,
                is_neox=True,
            )
        return wide_q.to(q.dtype), wide_k.to(k.dtype)

    def split(
        self, qkv: torch.Tensor, heads: int, kv_heads: int, head_dim: int, norms: Norms | None, by: Turn
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q, k and v [tokens, heads, head_dim] from one product; q and k normed and turned."""
        if norms is not None and self._can_fuse(qkv.dtype, norms.eps):
            return self._split_fused(qkv, heads, kv_heads, head_dim, norms, by)
        q, k, v = qkv.view(-1, heads + 2 * kv_heads, head_dim).split((heads, kv_heads, kv_heads), dim=1)
        if norms is not None:
            q, k = self._normed(q, k, norms)
        return (*self.turned(q, k, by), v)

    def _normed(self, q: torch.Tensor, k: torch.Tensor, norms: Norms) -> tuple[torch.Tensor, torch.Tensor]:
        norm, eps = self._rows.rms_norm, norms.eps
        return norm(q, norms.q_weight, eps), norm(k, norms.k_weight, eps)

    def _can_fuse(self, dtype: torch.dtype, eps: float) -> bool:
        return eps == FUSED_EPS and dtype in FUSED_DTYPES and self._vendor.has("split_norm_rope_neox")

    def _split_fused(
        self, qkv: torch.Tensor, heads: int, kv_heads: int, head_dim: int, norms: Norms, by: Turn
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        tokens = qkv.shape[0]
        q, k, v = (qkv.new_empty((tokens, count * head_dim)) for count in (heads, kv_heads, kv_heads))
        self._vendor.call(
            "split_norm_rope_neox",
            q,
            k,
            v,
            qkv.contiguous(),
            by.table.to(qkv.dtype),
            norms.q_weight.to(qkv.dtype),
            norms.k_weight.to(qkv.dtype),
            by.positions,
            tokens,
            tokens,  # rows of the table
            heads,
            kv_heads,
            head_dim,
            by.table.shape[1],
        )
        return q.view(tokens, heads, head_dim), k.view(tokens, kv_heads, head_dim), v.view(tokens, kv_heads, head_dim)


def _copied(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A contiguous tensor of its own."""
    return torch.empty(x.shape, dtype=dtype, device=x.device).copy_(x)


__all__ = ["FUSED_EPS", "Norms", "Rope", "Turn", "turn"]
