"""Attention over one latent vector per token (DeepSeek-V2, 2024). Knows pages; knows no form in which it is computed.

A token keeps `rank` numbers that keys and values of all heads are made of by a matrix each, and `rope_dim` rotated ones
that all heads' keys share. A kernel may make the keys and values (the expanded form), or move the matrices to the other
side of the sums, queries in place of keys and results in place of values (the absorbed form): the result is the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import torch

from anychip_sdk.ops.attention import GROUP, STEP_ARG
from anychip_sdk.ops.base import EXACT, Arg, accumulated, accurate, op
from anychip_sdk.ops.cases import Args, Case
from anychip_sdk.ops.checks import Checks, Terms, plant_in_moved, plant_not_a_number
from anychip_sdk.step import Step

LATENT_CACHE = Arg("cache", ("pages", "page_size", "entry"), state=True, doc="of a token: rank, then rope_dim")
LATENT_WRITTEN = dataclasses.replace(LATENT_CACHE, mutated=True)


def _write_case(case: Case) -> Args:
    sizes = (case["rank"], case["rope_dim"])
    if case.strided:
        parts: Args = case.floats(case["tokens"], sum(sizes)).split(sizes, dim=-1)
    else:
        parts = tuple(case.floats(case["tokens"], size) for size in sizes)
    return *parts, case.latents(), case.written(), 0


@op(
    Arg("latent", ("tokens", "rank"), doc="may be a strided view"),
    Arg("rotated", ("tokens", "rope_dim"), doc="may be a strided view"),
    LATENT_WRITTEN,
    STEP_ARG,
    GROUP,
    returns=LATENT_CACHE,
    error=EXACT,
    checks=Checks(_write_case, plant_in_moved),
)
def latent_write(
    latent: torch.Tensor, rotated: torch.Tensor, cache: torch.Tensor, step: Step, group: int = 0
) -> torch.Tensor:
    """Put each token's latent vector and the rotated numbers into its slot; returns the cache."""
    page_size, slots = cache.shape[1], step.paged(group).slots
    cache[slots // page_size, slots % page_size] = torch.cat((latent, rotated), dim=-1).to(cache.dtype)
    return cache


@latent_write.mistake
def _latent_write_puts_the_rotated_numbers_first(
    latent: torch.Tensor, rotated: torch.Tensor, cache: torch.Tensor, step: Step, group: int = 0
) -> torch.Tensor:
    """The rotated numbers lie before the latent ones."""
    out: torch.Tensor = latent_write.reference(rotated, latent, cache, step, group)
    return out


class _Row(NamedTuple):
    """One sequence's queries and all that they see."""

    tokens: slice  #: of the step
    kept: torch.Tensor  #: [context, rank + rope_dim]
    weights: torch.Tensor  #: of the keys: [heads, queries, context]


def _rows(
    q_nope: torch.Tensor,
    q_rope: torch.Tensor,
    cache: torch.Tensor,
    step: Step,
    key_weight: torch.Tensor,
    scale: float,
    group: int,
) -> Iterator[_Row]:
    """Keys are made of the latents; all in at least float32."""
    exact, (heads, nope), rank = accurate(q_nope.dtype), q_nope.shape[1:], key_weight.shape[1]
    maker, table, start = key_weight.to(exact).view(heads, nope, rank), step.paged(group).page_table, 0
    for row in range(step.rows):
        length, context = step.query_lens_host[row], step.context_lens_host[row]
        tokens = slice(start, start + length)
        kept = cache[table[row, : -(-context // step.page_size)].long()].flatten(0, 1)[:context].to(exact)
        keys = torch.einsum("kr,hnr->hkn", kept[:, :rank], maker)
        scores = torch.einsum("qhn,hkn->hqk", q_nope[tokens].to(exact), keys)
        scores = scores + torch.einsum("qhd,kd->hqk", q_rope[tokens].to(exact), kept[:, rank:])
        seen = torch.arange(context, device=q_nope.device).unsqueeze(0)
        hidden = seen > torch.arange(context - length, context, device=q_nope.device).unsqueeze(1)
        yield _Row(tokens, kept, (scores * scale).masked_fill(hidden, float("-inf")).softmax(dim=-1))
        start += length


def _attention_case(case: Case) -> Args:
    step, heads = case.step(), case["heads"]
    sizes = (case["nope_dim"], case["rope_dim"])
    if case.strided:
        q: Args = case.floats(step.tokens, heads, sum(sizes)).split(sizes, dim=-1)
    else:
        q = tuple(case.floats(step.tokens, heads, size) for size in sizes)
    weights = (case.weight(heads * case[name], case["rank"]) for name in ("nope_dim", "value_dim"))
    return *q, case.poisoned_latents(step), step, *weights, sum(sizes) ** -0.5, case["expand_from"], 0


def _attention_terms(
    q_nope: torch.Tensor,
    q_rope: torch.Tensor,
    cache: torch.Tensor,
    step: Step,
    key_weight: torch.Tensor,
    value_weight: torch.Tensor,
    scale: float,
    expand_from: int,
    group: int = 0,
) -> list[Terms]:
    """Queries or keys are rounded on the way, and so are mixed latents or values; a score's error is relative.

    What is summed has changing signs, so that the root of the squares' sum is what its parts come to.
    """
    (heads, nope), (rows, rank) = q_nope.shape[1:], value_weight.shape
    kept = cache.nan_to_num(0.0, 0.0, 0.0)
    longest = [part.square().sum(-1).max().sqrt() for part in (kept[..., :rank], kept[..., rank:])]
    moved = torch.einsum("thn,hnr->th", q_nope.square(), key_weight.square().view(heads, nope, rank)).sqrt()
    scores = [abs(scale) * size * most for size, most in zip((moved, q_rope.norm(dim=-1)), longest, strict=True)]
    mixed = q_nope.new_empty(len(q_nope), heads, rank)
    for row in _rows(q_nope, q_rope, cache, step, key_weight, scale, group):
        mixed[row.tokens] = torch.einsum("hqk,kr->qhr", row.weights, row.kept[:, :rank].abs())
    maker = value_weight.square().view(heads, rows // heads, rank)
    size = torch.einsum("thr,hvr->thv", mixed.square(), maker).sqrt()
    depth = max(step.context_lens_host, default=1) ** 0.5 + rank**0.5
    summed = (depth + 2 * cache.shape[2] ** 0.5 * sum(scores)).unsqueeze(-1) * size
    return [Terms(summed.flatten(1), ((1 + scores[0] / rank**0.5).unsqueeze(-1) * size).flatten(1))]


@op(
    Arg("q_nope", ("tokens", "heads", "nope_dim"), doc="may be a strided view"),
    Arg("q_rope", ("tokens", "heads", "rope_dim"), doc="rotated; may be a strided view"),
    LATENT_CACHE,
    STEP_ARG,
    Arg("key_weight", ("key_rows", "rank"), weight=True, doc="nope_dim rows for each head"),
    Arg("value_weight", ("value_rows", "rank"), weight=True, doc="value_dim rows for each head"),
    Arg("scale", dtype="float"),
    Arg("expand_from", dtype="int", doc="a row of so many query tokens had better be computed in the expanded form"),
    GROUP,
    returns=Arg("out", ("tokens", "value_rows"), doc="heads side by side"),
    error=accumulated("context", 8.0),
    checks=Checks(_attention_case, plant_not_a_number, _attention_terms),
)
def latent_attention(
    q_nope: torch.Tensor,
    q_rope: torch.Tensor,
    cache: torch.Tensor,
    step: Step,
    key_weight: torch.Tensor,
    value_weight: torch.Tensor,
    scale: float,
    expand_from: int,
    group: int = 0,
) -> torch.Tensor:
    """Causal softmax((q_nope (K c)^T + q_rope r^T) * scale) V c for ragged rows, for each head; c, r: what tokens keep.

    The cache holds this step's tokens already. The form in which a row is computed may depend on its number of query
    tokens and `expand_from`, never on other rows.
    """
    heads, (rows, rank) = q_nope.shape[1], value_weight.shape
    out = q_nope.new_empty(len(q_nope), rows)
    maker = value_weight.to(accurate(q_nope.dtype)).view(heads, rows // heads, rank)
    for row in _rows(q_nope, q_rope, cache, step, key_weight, scale, group):
        values = torch.einsum("kr,hvr->hkv", row.kept[:, :rank], maker)
        out[row.tokens] = torch.einsum("hqk,hkv->qhv", row.weights, values).flatten(1).to(out.dtype)
    return out


@latent_attention.mistake
def _latent_attention_forgets_the_rotated_part(
    q_nope: torch.Tensor, q_rope: torch.Tensor, *rest: object
) -> torch.Tensor:
    """Scores are those of the latents alone."""
    out: torch.Tensor = latent_attention.reference(q_nope, torch.zeros_like(q_rope), *rest)
    return out


@latent_attention.mistake
def _latent_attention_mixes_the_end_of_an_entry(
    q_nope: torch.Tensor,
    q_rope: torch.Tensor,
    cache: torch.Tensor,
    step: Step,
    key_weight: torch.Tensor,
    value_weight: torch.Tensor,
    scale: float,
    expand_from: int,
    group: int = 0,
) -> torch.Tensor:
    """Values are made of an entry's last numbers, the rotated ones among them, where rows are absorbed."""
    rank = key_weight.shape[1]
    right: torch.Tensor = latent_attention.reference(
        q_nope, q_rope, cache, step, key_weight, value_weight, scale, expand_from, group
    )
    out, maker = right.clone(), value_weight.to(accurate(q_nope.dtype)).view(q_nope.shape[1], -1, rank)
    for row in _rows(q_nope, q_rope, cache, step, key_weight, scale, group):
        if row.tokens.stop - row.tokens.start < expand_from:
            values = torch.einsum("kr,hvr->hkv", row.kept[:, -rank:], maker)
            out[row.tokens] = torch.einsum("hqk,hkv->qhv", row.weights, values).flatten(1).to(out.dtype)
    return out


@latent_attention.mistake
def _latent_attention_scales_by_the_latent(
    q_nope: torch.Tensor,
    q_rope: torch.Tensor,
    cache: torch.Tensor,
    step: Step,
    key_weight: torch.Tensor,
    value_weight: torch.Tensor,
    scale: float,
    *rest: object,
) -> torch.Tensor:
    """The scale is that of an entry's width, in place of the one that is given."""
    args = (q_nope, q_rope, cache, step, key_weight, value_weight, cache.shape[2] ** -0.5, *rest)
    out: torch.Tensor = latent_attention.reference(*args)
    return out


@latent_attention.mistake
def _latent_attention_takes_another_head(
    q_nope: torch.Tensor,
    q_rope: torch.Tensor,
    cache: torch.Tensor,
    step: Step,
    key_weight: torch.Tensor,
    value_weight: torch.Tensor,
    *rest: object,
) -> torch.Tensor:
    """A head's keys are made by the rows of the head before."""
    heads = q_nope.shape[1]
    turned = key_weight.view(heads, -1, key_weight.shape[1]).roll(1, 0).reshape(key_weight.shape)
    out: torch.Tensor = latent_attention.reference(q_nope, q_rope, cache, step, turned, value_weight, *rest)
    return out


__all__ = ["LATENT_CACHE", "LATENT_WRITTEN", "latent_attention", "latent_write"]
