"""Absorbed latent attention in the native library, which reads pages in place. Knows its structs; knows no model.

All heads read the same keys, so attention is that of many query heads over one head, whose values are the first numbers
of its keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from anychip_cpu import host, native
from anychip_cpu.kernels import row_args
from anychip_cpu.kernels.attention import is_kept_in
from anychip_cpu.kernels.latent import LatentAttention, LatentStep, Makers, Queries, Tokens, rows_of, split
from anychip_sdk.registry import Facts, Prepare
from anychip_sdk.step import Step, StepLimits

#: what ranks and rotated parts are multiples of, and the most that either may be with the other
STEP, MOST = 16, 1024

#: the most heads whose bfloat16 decodes the library does as fast as torch does on tile units
TILE_HEADS = 32

FACTS = ("dtype", "group", "expand_from", "kv_dtype", "heads", "rank", "rope_dim")


class Rows(NamedTuple):
    """Rows of a step that are absorbed."""

    tokens: Tokens
    call: native.AttentionCall


class NativeStep(NamedTuple):
    """What one step's attention needs in each layer."""

    step: Step
    absorbed: Rows | None
    others: LatentStep | None  #: what is left to torch; None: nothing is


class NativeLatent:
    """What the library can't read, and the expanded form, is left to torch.

    So is bfloat16 on tile units, but for decodes of few heads: at 64 heads torch is 1.5 times as fast there, in prompts
    three times. Whether a row is a decode decides, never its mates.

    Args:
        library: the native kernels, None where there are none.
        gathered: does what the library doesn't.
    """

    def __init__(self, library: native.Library | None, gathered: LatentAttention) -> None:
        self._library = library
        self._gathered = gathered
        self._has_tiles = "amx_bf16" in host.instruction_sets()
        self.prepare = Prepare(self.make, facts=FACTS)

    def make(self, facts: Facts, constants: Mapping[str, Any], limits: StepLimits) -> Callable[[Step], NativeStep]:
        dtype: torch.dtype = getattr(torch, str(facts["dtype"]))
        heads, rank, rope = (int(facts[name] or 0) for name in ("heads", "rank", "rope_dim"))
        group, least = int(facts.get("group") or 0), int(facts["expand_from"] or 0)
        kept = native.Heads(dtype, heads, 1, rank + rope, rank)
        library = self._library if is_kept_in(facts) else None
        has_tiles = self._has_tiles and dtype == torch.bfloat16

        def is_native(step: Step, row: int) -> bool:
            return not has_tiles or (row < step.decode_rows and heads <= TILE_HEADS)

        def prepare(step: Step) -> NativeStep:
            absorbed, expanded = split(step, least)
            mine = [row for row in absorbed if library is not None and is_native(step, row)]
            left = absorbed if not mine else [row for row in absorbed if not is_native(step, row)]
            others = self._gathered.plan(step, group, dtype, left, expanded) if left or expanded else None
            if library is None or not mine:
                return NativeStep(step, None, others)
            tokens, own = rows_of(step, mine, group)
            return NativeStep(step, Rows(tokens, native.AttentionCall(library, own, group, kept, own.rows)), others)

        return prepare

    def __call__(
        self,
        q_nope: torch.Tensor,
        q_rope: torch.Tensor,
        cache: torch.Tensor,
        prepared: NativeStep,
        key_weight: torch.Tensor,
        value_weight: torch.Tensor,
        scale: float,
        expand_from: int,
        group: int = 0,
    ) -> torch.Tensor:
        rank, heads = key_weight.shape[1], q_nope.shape[1]
        makers = Makers(*(weight.view(heads, -1, rank) for weight in (key_weight, value_weight)))
        queries, rows, others = Queries(q_nope, q_rope), prepared.absorbed, prepared.others
        out = torch.empty((len(q_nope), heads, makers.values.shape[1]), dtype=q_nope.dtype)
        if rows is not None and not _is_readable(queries, cache, makers):
            absorbed, expanded = split(prepared.step, expand_from)
            rows, others = None, self._gathered.plan(prepared.step, group, q_nope.dtype, absorbed, expanded)
        if rows is not None:
            self._absorb(out, queries, cache, rows, makers, scale)
        if others is not None:
            self._gathered.fill(out, queries, cache, others, makers, scale)
        return out.flatten(1)

    def _absorb(
        self, out: torch.Tensor, queries: Queries, cache: torch.Tensor, rows: Rows, makers: Makers, scale: float
    ) -> None:
        assert self._library is not None
        nope, rope = queries.nope[rows.tokens], queries.rope[rows.tokens]
        (heads, _, rank), whole = makers.keys.shape, isinstance(rows.tokens, slice)
        q = torch.empty((len(nope), heads, cache.shape[2]), dtype=nope.dtype)
        self._library.head_product(row_args.head_product(nope, makers.keys, q, rope))
        mixed, entries = torch.empty((len(nope), heads, rank), dtype=nope.dtype), cache.unsqueeze(2)
        rows.call(mixed, q, entries, entries, native.Scores(scale))
        made = out if whole else torch.empty((len(nope), *out.shape[1:]), dtype=out.dtype)
        self._library.head_product(row_args.head_product(mixed, makers.values.transpose(1, 2), made))
        if not whole:
            out[rows.tokens] = made


def is_size(size: object) -> bool:
    """Whether a rank or a rotated part may have that size."""
    return isinstance(size, int) and size % STEP == 0 and 0 < size <= MOST


def _is_readable(queries: Queries, cache: torch.Tensor, makers: Makers) -> bool:
    """Of one dtype, each entry's and each head's elements side by side."""
    tensors = (*queries, cache, *makers)
    are_alike = all(one.dtype == queries.nope.dtype for one in tensors)
    return are_alike and all(one.stride(-1) == 1 for one in tensors) and all(one.is_contiguous() for one in makers)


__all__ = ["MOST", "STEP", "NativeLatent", "NativeStep", "is_size"]
