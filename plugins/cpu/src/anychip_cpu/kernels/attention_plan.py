"""What a step's attention gathers and masks, decided once for all layers. Knows lengths and pages; knows no head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from anychip_sdk.step import Step

#: queries per attention call of a prefill row that sees earlier tokens; bounds the mask and the masked-out work
BLOCK = 512
#: a decode row joins a bucket unless it would be padded by more than this share and this many tokens
PADDING_SHARE = 0.25
PADDING_TOKENS = 128
#: contexts are padded to a multiple of this, a vector's width: the flash kernel sums a shorter tail in another order,
#: and a row's result would depend on how long its batch mates or its chunk are
ALIGNMENT = 16


class Keys(NamedTuple):
    """Where keys lie: slots [tokens], or slots first .. first + tokens - 1 if `slots` is None."""

    slots: torch.Tensor | None
    first: int
    tokens: int


class DecodeBucket(NamedTuple):
    """Rows with one query each whose contexts are padded to one length."""

    rows: torch.Tensor | None  #: int64 [rows]; None: the first `size` rows of the step
    size: int  #: rows
    length: int
    keys: Keys  #: [size * length]; behind a row's end its last token again: no foreign data is read
    mask: torch.Tensor | None  #: [rows, 1, 1, length], -inf behind a row's end; None: no padding


class Block(NamedTuple):
    """Queries start .. stop-1 of the step against keys key_start .. key_stop-1 of the row."""

    start: int
    stop: int
    key_start: int
    key_stop: int
    causal: bool  #: queries and keys are the same tokens, hidden ones may follow; else `mask`
    mask: torch.Tensor | None  #: [queries, keys]


class PrefillRow(NamedTuple):
    keys: Keys
    blocks: tuple[Block, ...]


class StepPlan(NamedTuple):
    decodes: tuple[DecodeBucket, ...]
    prefills: tuple[PrefillRow, ...]


def plan_step(step: Step, group: int, window: int | None, dtype: torch.dtype, first: int = 0) -> StepPlan:
    """Buckets for the decode rows, blocks for the others.

    Args:
        step: whose rows are planned.
        group: of states, whose pages are read.
        window: that queries see.
        dtype: of the masks.
        first: rows before are left out; 0, or all decode rows.
    """
    table = step.paged(group).page_table
    visible = [context if window is None else min(context, window) for context in step.context_lens_host]
    buckets = bucketed(visible[: step.decode_rows]) if first == 0 else []
    decodes = tuple(_bucket(step, table, rows, visible, dtype) for rows in buckets)
    spans = _prefill_spans(step, window)
    mask = _step_mask([span for row in spans for span in row[1]], window, dtype)
    prefills = tuple(
        _prefill_row(step, table, step.decode_rows + number, low, blocks, mask)
        for number, (low, blocks) in enumerate(spans)
    )
    return StepPlan(decodes, prefills)


def bucketed(lengths: Sequence[int]) -> list[list[int]]:
    """Row numbers grouped so that little of each group is padding; ascending within a group."""
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    groups: list[list[int]] = []
    longest = 0
    for row in order:
        padding = longest - lengths[row]
        if not groups or (padding > PADDING_SHARE * longest and padding > PADDING_TOKENS):
            groups.append([])
            longest = lengths[row]
        groups[-1].append(row)
    return [sorted(group) for group in groups]


class _Span(NamedTuple):
    """A block before its mask is known."""

    start: int
    stop: int
    key_start: int
    key_stop: int
    causal: bool


def _aligned(tokens: int) -> int:
    return -(-tokens // ALIGNMENT) * ALIGNMENT


def _bucket(step: Step, table: torch.Tensor, rows: list[int], visible: list[int], dtype: torch.dtype) -> DecodeBucket:
    device = table.device
    lengths_host = [visible[row] for row in rows]
    longest = _aligned(max(lengths_host))
    everyone = len(rows) == step.decode_rows
    index = None if everyone else torch.tensor(rows, dtype=torch.int64, device=device)
    lengths = torch.tensor(lengths_host, device=device).unsqueeze(1)
    contexts = torch.tensor([step.context_lens_host[row] for row in rows], device=device).unsqueeze(1)
    offsets = torch.arange(longest, device=device).unsqueeze(0)
    positions = contexts - lengths + torch.minimum(offsets, lengths - 1)
    table = table[: len(rows)] if index is None else table.index_select(0, index)
    keys = _keys(table, positions, step.page_size)
    mask = None
    if min(lengths_host) < longest:
        hidden = (offsets >= lengths).view(len(rows), 1, 1, longest)
        mask = torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, float("-inf"))
    return DecodeBucket(index, len(rows), longest, keys, mask)


def _keys(table: torch.Tensor, positions: torch.Tensor, page_size: int) -> Keys:
    """The slots of positions [rows, tokens]; a lone row in neighbouring pages needs no gathering."""
    pages = table.long().gather(1, positions // page_size)
    slots = (pages * page_size + positions % page_size).view(-1)
    if len(table) == 1 and bool((slots.diff() == 1).all()):
        return Keys(None, int(slots[0]), slots.numel())
    return Keys(slots, 0, slots.numel())


def _prefill_spans(step: Step, window: int | None) -> list[tuple[int, list[_Span]]]:
    """For each prefill row: the first position that it reads and its blocks, keys counted from there."""
    found = []
    token = step.decode_rows
    for row in range(step.decode_rows, step.rows):
        length, context = step.query_lens_host[row], step.context_lens_host[row]
        found.append(_row_spans(token, length, context, window))
        token += length
    return found


def _row_spans(token: int, length: int, context: int, window: int | None) -> tuple[int, list[_Span]]:
    if length == context and (window is None or window >= context):
        return 0, [_Span(token, token + length, 0, context, True)]
    start = context - length  # position of the first query
    low = 0 if window is None else max(0, start - window + 1)
    spans = []
    for first in range(0, length, BLOCK):
        last = min(first + BLOCK, length)
        key_start = 0 if window is None else max(0, start + first - window + 1) - low
        spans.append(_Span(token + first, token + last, key_start, start + last - low, False))
    return low, spans


def _prefill_row(
    step: Step, table: torch.Tensor, row: int, low: int, spans: list[_Span], mask: torch.Tensor | None
) -> PrefillRow:
    context = step.context_lens_host[row]
    stops = [span.key_start + _aligned(span.key_stop - span.key_start) for span in spans]
    positions = torch.arange(low, low + max(stops), device=table.device).clamp(max=context - 1)
    keys = _keys(table[row : row + 1], positions.unsqueeze(0), step.page_size)
    blocks = (
        Block(*span._replace(key_stop=stop), _corner(mask, span, stop)) for span, stop in zip(spans, stops, strict=True)
    )
    return PrefillRow(keys, tuple(blocks))


def _step_mask(spans: list[_Span], window: int | None, dtype: torch.dtype) -> torch.Tensor | None:
    """One mask whose lower right parts serve every block: it depends on the distance to the key only.

    Behind the last query's own key come ALIGNMENT - 1 columns that are hidden from all.
    """
    masked = [span for span in spans if not span.causal]
    if not masked:
        return None
    queries = max(span.stop - span.start for span in masked)
    keys = max(span.key_stop - span.key_start for span in masked)
    distance = torch.arange(keys - 1, -ALIGNMENT, -1).unsqueeze(0) - torch.arange(queries - 1, -1, -1).unsqueeze(1)
    hidden = distance < 0
    if window is not None:
        hidden |= distance >= window
    return torch.zeros(distance.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))


def _corner(mask: torch.Tensor | None, span: _Span, key_stop: int) -> torch.Tensor | None:
    """The block's part of the step's mask; `key_stop` is aligned."""
    if mask is None or span.causal:
        return None
    first = mask.shape[1] - (ALIGNMENT - 1) - (span.key_stop - span.key_start)
    return mask[mask.shape[0] - (span.stop - span.start) :, first : first + key_stop - span.key_start]


__all__ = ["Block", "DecodeBucket", "Keys", "PrefillRow", "StepPlan", "bucketed", "plan_step"]
