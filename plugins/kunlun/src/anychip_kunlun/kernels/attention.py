"""Paged attention on the vendor's two ops: one for rows of a prompt, one for decodes. Knows pages; knows no request."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from anychip_kunlun.kv import head_major
from anychip_kunlun.vendor import VendorOps
from anychip_sdk.step import Step

#: the decode op refuses 1024 rows and more
DECODE_ROWS_MAX = 1023


class Lods(NamedTuple):
    """Cumulated lengths, which the prefill op wants on both sides."""

    host: torch.Tensor
    device: torch.Tensor


class Decodes(NamedTuple):
    """A part of a step's decode rows."""

    start: int
    stop: int
    contexts_host: torch.Tensor
    contexts: torch.Tensor
    longest: int
    table: torch.Tensor


class Prefills(NamedTuple):
    """A step's rows of prompts."""

    start: int  #: the first token
    queries: Lods
    keys: Lods
    table: torch.Tensor


class AttentionPlan(NamedTuple):
    """What both ops take of a step, made once for all layers."""

    decodes: tuple[Decodes, ...]
    prefills: Prefills | None


def plan_attention(step: Step, group: int, rows_max: int = DECODE_ROWS_MAX) -> AttentionPlan:
    """The plan of one group of states; decode rows in parts of at most `rows_max`."""
    table = step.paged(group).page_table
    rows = range(0, step.decode_rows, rows_max)
    decodes = tuple(_decodes(step, table, start, min(start + rows_max, step.decode_rows)) for start in rows)
    return AttentionPlan(decodes, _prefills(step, table) if step.rows > step.decode_rows else None)


def _decodes(step: Step, table: torch.Tensor, start: int, stop: int) -> Decodes:
    contexts = step.context_lens_host[start:stop]
    return Decodes(
        start,
        stop,
        torch.tensor(contexts, dtype=torch.int32),
        step.context_lens[start:stop],
        max(contexts),
        table[start:stop].contiguous(),
    )


def _prefills(step: Step, table: torch.Tensor) -> Prefills:
    first = step.decode_rows
    return Prefills(
        first,  # a decode row is one token
        _lods(step.query_lens_host[first:], table.device),
        _lods(step.context_lens_host[first:], table.device),
        table[first:].contiguous(),
    )


def _lods(lengths: tuple[int, ...], device: torch.device) -> Lods:
    host = torch.tensor((0, *lengths), dtype=torch.int32).cumsum(0, dtype=torch.int32)
    return Lods(host, host.to(device, copy=True))


class Attention:
    def __init__(self, vendor: VendorOps) -> None:
        self._vendor = vendor

    def __call__(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        plan: AttentionPlan,
        scale: float,
        window: int | None = None,
        group: int = 0,
        soft_cap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """What is optional is None: kernels are registered for that only."""
        q = q.contiguous()
        out = torch.empty_like(q)
        k, v = head_major(k_cache), head_major(v_cache)
        for rows in plan.decodes:
            self._decode(rows, q, k, v, out, scale)
        if plan.prefills is not None:
            self._prefill(plan.prefills, q, k, v, out, scale)
        return out

    def _decode(
        self, rows: Decodes, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, scale: float
    ) -> None:
        count, (heads, head_dim) = rows.stop - rows.start, q.shape[1:]
        kv_heads, page_size = k.shape[1:3]
        mine, result = q[rows.start : rows.stop], out[rows.start : rows.stop]
        if not self._vendor.has("speculative_attention"):
            self._decode_older(rows, mine, k, v, result, scale)
            return
        self._vendor.call(
            "speculative_attention",
            out=result.unsqueeze(0),
            q=mine.unsqueeze(0),
            k_cache=k,
            v_cache=v,
            context_lens_cpu=rows.contexts_host,
            context_lens_xpu=rows.contexts,
            batch_num=count,
            qlen=1,
            max_context_len=rows.longest,
            head_num=heads,
            head_dim=head_dim,
            scale=scale,
            kv_head_num=kv_heads,
            block_size=page_size,
            max_num_blocks_per_seq=rows.table.shape[1],
            max_window_size=-1,
            block_tables=rows.table,
            sink=None,
        )

    def _decode_older(
        self, rows: Decodes, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, scale: float
    ) -> None:
        self._vendor.call(
            "paged_attention",
            out,
            q,
            k,
            v,
            rows.table,
            rows.contexts_host,
            rows.contexts,
            is_context=False,
            is_causal=True,
            vo_head_dim=q.shape[-1],
            softmax_scale=scale,
        )

    def _prefill(
        self, rows: Prefills, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, scale: float
    ) -> None:
        """The cached prefix and the new tokens are read from the pages alike."""
        self._vendor.call(
            "prefill_attention",
            q=q[rows.start :],
            k=k,
            v=v,
            out=out[rows.start :],
            is_causal=True,
            is_prefix_cache=True,
            block_table=rows.table,
            alpha=scale * math.sqrt(q.shape[-1]),  # the op divides by the root of the head's size
            context_qlen_lod_cpu=rows.queries.host,
            context_qlen_lod_xpu=rows.queries.device,
            context_kvlen_lod_cpu=rows.keys.host,
            context_kvlen_lod_xpu=rows.keys.device,
            alibi_slopes=None,
            softmax_lse=None,
            swa_left=-1,
            swa_right=-1,
            sink=None,
        )


__all__ = ["DECODE_ROWS_MAX", "Attention", "AttentionPlan", "plan_attention"]
