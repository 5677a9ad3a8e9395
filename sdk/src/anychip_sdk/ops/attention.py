"""Attention over the paged cache, prefill and decode rows in one call. Knows pages; knows no prefix cache."""

from __future__ import annotations

import torch

from anychip_sdk.ops.base import STEP, Arg, accumulated, accurate, op
from anychip_sdk.ops.cases import Args, Case
from anychip_sdk.ops.checks import Checks, Terms, plant_not_a_number
from anychip_sdk.step import Step

K_CACHE = Arg("k_cache", ("pages", "page_size", "kv_heads", "head_dim"), state=True)
V_CACHE = Arg("v_cache", ("pages", "page_size", "kv_heads", "head_dim"), state=True)
STEP_ARG = Arg("step", dtype=STEP)
GROUP = Arg("group", dtype="int", doc="which of the step's groups of states the caches belong to")


def _case(case: Case) -> Args:
    step = case.step()
    q = case.heads(step.tokens)[0]
    return q, *case.poisoned(step), step, case["head_dim"] ** -0.5, case["window"] or None, 0


def _terms(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    step: Step,
    scale: float,
    window: int | None = None,
    group: int = 0,
) -> list[Terms]:
    """A score's error becomes a weight's relative error; weights may be rounded to the dtype before they meet v."""
    mixed = paged_attention.reference(q, k, v.abs(), step, scale, window, group)
    longest = k.nan_to_num(0.0, 0.0, 0.0).square().sum(-1).sqrt().max() if k.numel() else torch.tensor(0.0)
    scores = q.square().sum(-1, keepdim=True).sqrt() * longest * abs(scale)
    context = max(step.context_lens_host, default=1)
    return [Terms((context**0.5 + 2 * q.shape[-1] ** 0.5 * scores) * mixed, mixed)]


@op(
    Arg("q", ("tokens", "heads", "head_dim")),
    K_CACHE,
    V_CACHE,
    STEP_ARG,
    Arg("scale", dtype="float"),
    Arg("window", dtype="int", optional=True, doc="a query sees the last `window` positions, its own included"),
    GROUP,
    returns=Arg("out", ("tokens", "heads", "head_dim")),
    error=accumulated("context", 8.0),
    checks=Checks(_case, plant_not_a_number, _terms),
)
def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    step: Step,
    scale: float,
    window: int | None = None,
    group: int = 0,
) -> torch.Tensor:
    """Causal softmax(q k^T * scale) v for ragged rows, grouped-query: head h reads kv head h // (heads / kv_heads).

    The caches hold this step's keys and values already.
    """
    heads, kv_heads = q.shape[1], k_cache.shape[2]
    exact = accurate(q.dtype)
    page_table = step.paged(group).page_table
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    start = 0
    for row in range(step.rows):
        length, context = step.query_lens_host[row], step.context_lens_host[row]
        pages = page_table[row, : -(-context // step.page_size)].long()
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


__all__ = ["GROUP", "K_CACHE", "STEP_ARG", "V_CACHE", "paged_attention"]
