"""Attention over the paged cache, prefill and decode rows in one call. Knows pages; knows no prefix cache."""

from __future__ import annotations

import torch

from anychip_sdk.ops.base import Arg, AttentionBatch, accumulated, accurate, op


@op(
    Arg("q", "[tokens, heads, head_dim]"),
    Arg("k_cache", "[pages, page_size, kv_heads, head_dim]", doc="holds this step's keys already"),
    Arg("v_cache", "[pages, page_size, kv_heads, head_dim]"),
    Arg("batch", dtype="AttentionBatch"),
    Arg("scale", dtype="float"),
    Arg("window", dtype="int", optional=True, doc="a query sees the last `window` positions, its own included"),
    returns=Arg("out", "[tokens, heads, head_dim]"),
    error=accumulated("context", 8.0),
)
def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    batch: AttentionBatch,
    scale: float,
    window: int | None = None,
) -> torch.Tensor:
    """Causal softmax(q k^T * scale) v for ragged rows, grouped-query: head h reads kv head h // (heads / kv_heads)."""
    heads, kv_heads = q.shape[1], k_cache.shape[2]
    exact = accurate(q.dtype)
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    start = 0
    for row in range(batch.rows):
        length, context = batch.query_lens_host[row], batch.context_lens_host[row]
        pages = batch.page_table[row, : -(-context // batch.page_size)].long()
        k = k_cache[pages].flatten(0, 1)[:context].to(exact).repeat_interleave(heads // kv_heads, dim=1)
        v = v_cache[pages].flatten(0, 1)[:context].to(exact).repeat_interleave(heads // kv_heads, dim=1)
        query_at = torch.arange(context - length, context, device=q.device).unsqueeze(1)
        key_at = torch.arange(context, device=q.device).unsqueeze(0)
        hidden = key_at > query_at
        if window is not None:
            hidden = hidden | (key_at <= query_at - window)
        scores = torch.einsum("qhd,khd->hqk", q[start : start + length].to(exact), k) * scale
        weights = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1)
        out[start : start + length] = torch.einsum("hqk,khd->qhd", weights, v).to(q.dtype)
        start += length
    return out
