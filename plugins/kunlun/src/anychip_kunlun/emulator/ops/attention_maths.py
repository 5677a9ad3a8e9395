"""The arithmetic of attention, for all rows at once, in float32. Knows no contract."""

from __future__ import annotations

from typing import Protocol

import torch

INT8_MAX = 127


class Paged(Protocol):
    """Paged caches; see `Caches`."""

    @property
    def k(self) -> torch.Tensor: ...
    @property
    def v(self) -> torch.Tensor: ...
    @property
    def k_absmax(self) -> torch.Tensor | None: ...
    @property
    def v_absmax(self) -> torch.Tensor | None: ...


def gathered(caches: Paged, table: torch.Tensor, longest: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values [rows, kv_heads, longest, head_dim] from the blocks of each row.

    Entries of the table behind a row's last block are never looked up on the chip and may be anything.
    """
    blocks = -(-longest // caches.k.shape[2])
    at = table[:, :blocks].long()
    at = at.where((at >= 0) & (at < caches.k.shape[0]), torch.zeros_like(at))
    return _taken(caches.k, at, longest, caches.k_absmax), _taken(caches.v, at, longest, caches.v_absmax)


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    lengths: torch.Tensor,
    scale: float,
    is_causal: bool,
    window: int,
) -> torch.Tensor:
    """Grouped-query attention of q [rows, queries, heads, dim] over k, v [rows, kv_heads, keys, dim].

    Row r has lengths[r] keys; its queries are the last positions of them. window: keys seen, the own one included;
    -1: all.
    """
    rows, queries, heads, dim = q.shape
    kv_heads, keys = k.shape[1], k.shape[2]
    grouped = q.float().view(rows, queries, kv_heads, heads // kv_heads, dim)
    scores = torch.einsum("rqhgd,rhkd->rhgqk", grouped, k) * scale
    key_at = torch.arange(keys)
    last = lengths[:, None, None]
    query_at = last - queries + torch.arange(queries)[None, :, None]
    hidden = key_at >= last
    if is_causal:
        hidden = hidden | (key_at > query_at)
    if window >= 0:
        hidden = hidden | (key_at <= query_at - window)
    weights = scores.masked_fill(hidden[:, None, None], float("-inf")).softmax(dim=-1)
    if int(lengths.min()) < keys:  # what lies behind a row's keys may be NaN, and 0 * NaN is NaN
        v = v.masked_fill((key_at >= last)[:, :, :, None], 0.0)
    return torch.einsum("rhgqk,rhkd->rqhgd", weights, v).reshape(q.shape).to(q.dtype)


def _taken(cache: torch.Tensor, blocks: torch.Tensor, longest: int, absmax: torch.Tensor | None) -> torch.Tensor:
    rows, count = blocks.shape
    heads, block_size, dim = cache.shape[1:]
    taken = cache.index_select(0, blocks.flatten()).view(rows, count, heads, block_size, dim)
    taken = taken.transpose(1, 2).reshape(rows, heads, count * block_size, dim)[:, :, :longest].float()
    return taken if absmax is None else taken * (absmax.view(heads, 1, dim) / INT8_MAX)


__all__ = ["attend", "gathered"]
