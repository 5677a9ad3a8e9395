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
    cap, window = case["soft_cap"], case["window"] or None
    sinks = case.floats(case["heads"], scale=2.0) if case["sinks"] else None
    return q, *case.poisoned(step), step, case["head_dim"] ** -0.5, window, 0, float(cap) if cap else None, sinks


def _terms(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    step: Step,
    scale: float,
    window: int | None = None,
    group: int = 0,
    soft_cap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> list[Terms]:
    """A score's error becomes a weight's relative error; weights may be rounded to the dtype before they meet v."""
    mixed = paged_attention.reference(q, k, v.abs(), step, scale, window, group, soft_cap, sinks)
    longest = k.nan_to_num(0.0, 0.0, 0.0).square().sum(-1).sqrt().max() if k.numel() else torch.tensor(0.0)
    scores = q.square().sum(-1, keepdim=True).sqrt() * longest * abs(scale)
    context = max(step.context_lens_host, default=1)
    capped = 4 * (soft_cap or 0.0)  # a hyperbolic tangent's error is one of its largest value
    return [Terms((context**0.5 + 2 * q.shape[-1] ** 0.5 * scores + capped) * mixed, mixed)]


@op(
    Arg("q", ("tokens", "heads", "head_dim")),
    K_CACHE,
    V_CACHE,
    STEP_ARG,
    Arg("scale", dtype="float"),
    Arg("window", dtype="int", optional=True, doc="a query sees the last `window` positions, its own included"),
    GROUP,
    Arg("soft_cap", dtype="float", optional=True, doc="scores become soft_cap * tanh(score / soft_cap)"),
    Arg("sinks", ("heads",), optional=True, weight=True, doc="a score of each head that weighs nothing's value"),
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
    soft_cap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Causal softmax(q k^T * scale) v for ragged rows, grouped-query: head h reads kv head h // (heads / kv_heads).

    The caches hold this step's keys and values already. A sink takes part in its head's softmax and in no sum of
    values: the weights add up to less than 1 (Xiao et al., 2023). It is a score as it is, neither scaled nor capped.
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
        weights = _weights(scores, hidden, soft_cap, sinks)
        out[start : start + length] = torch.einsum("hqk,khd->qhd", weights, v).to(q.dtype)
        start += length
    return out


def _weights(
    scores: torch.Tensor, hidden: torch.Tensor, soft_cap: float | None, sinks: torch.Tensor | None
) -> torch.Tensor:
    """scores: [heads, queries, keys]; hidden: [queries, keys]."""
    if soft_cap is not None:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    scores = scores.masked_fill(hidden, float("-inf"))
    if sinks is None:
        return scores.softmax(dim=-1)
    column = sinks.to(scores.dtype).view(-1, 1, 1).expand(-1, scores.shape[1], 1)
    return torch.cat((scores, column), dim=-1).softmax(dim=-1)[..., :-1]


__all__ = ["GROUP", "K_CACHE", "STEP_ARG", "V_CACHE", "paged_attention"]
