"""Attention over one latent vector per token, absorbed or expanded. Knows pages by the step's plan; knows no model.

Absorbed, a token's vector is the key that all heads share, and its first numbers are the value. Expanded, each head's
keys and values are made of the vectors first, which pays where many queries read them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Union

import torch
from torch.nn.functional import pad

from anychip_cpu.kernels.attention import PagedAttention, prefill_block
from anychip_cpu.kernels.attention_plan import PrefillRow, StepPlan, plan_step
from anychip_cpu.kernels.cache import are_slots_even
from anychip_sdk.registry import Facts, Prepare
from anychip_sdk.step import Paged, Step, StepLimits

#: of the keys and values that are made at a time: those of as many heads as fit
EXPANDED_BYTES = 32 << 20


class Makers(NamedTuple):
    """The matrices of all heads."""

    keys: torch.Tensor  #: [heads, nope_dim, rank]
    values: torch.Tensor  #: [heads, value_dim, rank]


class Queries(NamedTuple):
    nope: torch.Tensor  #: [tokens, heads, nope_dim]
    rope: torch.Tensor  #: [tokens, heads, rope_dim]


#: which of a step's
Tokens = Union[slice, torch.Tensor]


class Part(NamedTuple):
    """Rows of a step that are computed in one form."""

    tokens: Tokens
    plan: StepPlan


class LatentStep(NamedTuple):
    """What one step's attention needs in each layer."""

    absorbed: Part | None
    expanded: Part | None


def latent_write(
    latent: torch.Tensor, rotated: torch.Tensor, cache: torch.Tensor, step: Step, group: int = 0
) -> torch.Tensor:
    slots = step.paged(group).slots
    entries = torch.cat((latent, rotated), dim=-1).to(cache.dtype)
    if are_slots_even(cache):
        cache.view(-1, cache.shape[2]).index_copy_(0, slots, entries)
    else:
        cache[slots // cache.shape[1], slots % cache.shape[1]] = entries
    return cache


class LatentAttention:
    """Latents are gathered for torch's flash kernel.

    Args:
        gathered: keeps the memory that they are gathered into.
    """

    def __init__(self, gathered: PagedAttention) -> None:
        self._gathered = gathered
        self.prepare = Prepare(self.make, facts=("dtype", "group", "expand_from"))

    def make(self, facts: Facts, constants: Mapping[str, Any], limits: StepLimits) -> Callable[[Step], LatentStep]:
        dtype: torch.dtype = getattr(torch, str(facts["dtype"]))
        group, least = int(facts.get("group") or 0), int(facts["expand_from"] or 0)
        return lambda step: self.plan(step, group, dtype, *split(step, least))

    def plan(
        self, step: Step, group: int, dtype: torch.dtype, absorbed: Sequence[int], expanded: Sequence[int]
    ) -> LatentStep:
        """What is needed for these rows of a step."""

        def part(rows: Sequence[int]) -> Part | None:
            if not rows:
                return None
            tokens, own = rows_of(step, rows, group)
            return Part(tokens, plan_step(own, group, None, dtype))

        return LatentStep(part(absorbed), part(expanded))

    def __call__(
        self,
        q_nope: torch.Tensor,
        q_rope: torch.Tensor,
        cache: torch.Tensor,
        prepared: LatentStep,
        key_weight: torch.Tensor,
        value_weight: torch.Tensor,
        scale: float,
        expand_from: int,
        group: int = 0,
    ) -> torch.Tensor:
        heads, rank = q_nope.shape[1], key_weight.shape[1]
        makers = Makers(*(weight.view(heads, -1, rank) for weight in (key_weight, value_weight)))
        out = torch.empty((len(q_nope), heads, makers.values.shape[1]), dtype=q_nope.dtype)
        self.fill(out, Queries(q_nope, q_rope), cache, prepared, makers, scale)
        return out.flatten(1)

    def fill(
        self,
        out: torch.Tensor,
        queries: Queries,
        cache: torch.Tensor,
        planned: LatentStep,
        makers: Makers,
        scale: float,
    ) -> None:
        """Fill in the planned rows' part of `out` [tokens, heads, value_dim]."""
        for part, attend in ((planned.absorbed, self._absorb), (planned.expanded, self._expand)):
            if part is not None:
                own = Queries(queries.nope[part.tokens], queries.rope[part.tokens])
                out[part.tokens] = attend(own, cache, part.plan, makers, scale)

    def _absorb(
        self, queries: Queries, cache: torch.Tensor, plan: StepPlan, makers: Makers, scale: float
    ) -> torch.Tensor:
        """[tokens, heads, value_dim]; what is behind a mixed vector's first numbers is dropped."""
        q = absorbed(queries, makers.keys)
        mixed = self._gathered.mixed(q, (cache.unsqueeze(2), cache.unsqueeze(2)), plan, scale)
        return expanded(mixed[..., : makers.values.shape[2]], makers.values)

    def _expand(
        self, queries: Queries, cache: torch.Tensor, plan: StepPlan, makers: Makers, scale: float
    ) -> torch.Tensor:
        out = torch.empty((*queries.nope.shape[:2], makers.values.shape[1]), dtype=queries.nope.dtype)
        for row in plan.prefills:
            kept = self._gathered.tokens("latents", cache, row.keys).to(out.dtype)
            _expand_row(out, queries, kept, row, makers, scale)
        return out


def split(step: Step, expand_from: int) -> tuple[list[int], list[int]]:
    """The rows that are absorbed and those that are expanded: those of a prompt with enough query tokens."""
    lengths = step.query_lens_host
    expanded = [row for row in range(step.decode_rows, step.rows) if lengths[row] >= expand_from]
    if not expanded:
        return list(range(step.rows)), []
    return [row for row in range(step.rows) if row < step.decode_rows or lengths[row] < expand_from], expanded


def rows_of(step: Step, rows: Sequence[int], group: int) -> tuple[Tokens, Step]:
    """Some of a step's rows as a step for attention alone, and which of its tokens they have."""
    if len(rows) == step.rows:
        return slice(None), step
    starts = [0]
    for length in step.query_lens_host:
        starts.append(starts[-1] + length)
    lengths = tuple(step.query_lens_host[row] for row in rows)
    tokens = torch.cat([torch.arange(starts[row], starts[row + 1]) for row in rows])
    entry = step.paged(group)
    own = replace(
        step,
        query_start=torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32),
        context_lens=step.context_lens[list(rows)],
        groups=(*step.groups[:group], Paged(entry.page_table[list(rows)], entry.slots), *step.groups[group + 1 :]),
        decode_rows=sum(row < step.decode_rows for row in rows),
        query_lens_host=lengths,
        context_lens_host=tuple(step.context_lens_host[row] for row in rows),
    )
    return tokens, own


def absorbed(queries: Queries, keys: torch.Tensor) -> torch.Tensor:
    """Queries of what tokens keep, [tokens, heads, rank + rope_dim]."""
    moved = torch.bmm(queries.nope.transpose(0, 1), keys).transpose(0, 1)
    return torch.cat((moved, queries.rope), dim=-1)


def expanded(mixed: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Each head's values of mixed latents [tokens, heads, rank]: [tokens, heads, value_dim]."""
    return torch.bmm(mixed.transpose(0, 1), values.transpose(1, 2)).transpose(0, 1)


def _expand_row(
    out: torch.Tensor, queries: Queries, kept: torch.Tensor, row: PrefillRow, makers: Makers, scale: float
) -> None:
    """The flash kernel wants keys as wide as values, so the narrower of them ends with zeros."""
    heads, nope, rank = makers.keys.shape
    rope, value_dim = queries.rope.shape[2], makers.values.shape[1]
    width = max(nope + rope, value_dim)
    latents, rotated = kept[:, :rank], kept[:, rank:].unsqueeze(1)
    together = max(1, EXPANDED_BYTES // (2 * len(kept) * width * kept.itemsize))
    for first in range(0, heads, together):
        some = slice(first, min(heads, first + together))
        count = some.stop - first
        keys, values = (latents @ maker[some].flatten(0, 1).T for maker in makers)
        k = torch.cat((keys.view(-1, count, nope), rotated.expand(-1, count, -1)), dim=-1)
        q = torch.cat((queries.nope[:, some], queries.rope[:, some]), dim=-1)
        k, q = (pad(one, (0, width - nope - rope)) for one in (k, q))
        v = pad(values.view(-1, count, value_dim), (0, width - value_dim))
        mixed = torch.empty_like(q)
        for block in row.blocks:
            prefill_block(mixed, q, k, v, block, scale)
            out[block.start : block.stop, some] = mixed[block.start : block.stop, :, :value_dim]


__all__ = ["LatentAttention", "LatentStep", "Makers", "Queries", "Tokens", "latent_write", "rows_of", "split"]
