"""A batch's rows as one step. Knows slots and positions; knows no model."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from itertools import accumulate

import numpy as np
import torch

from anychip.engine.batch import Batch, Row
from anychip.engine.page_rows import PageRows
from anychip_sdk.state import StateGroup
from anychip_sdk.step import GroupEntry, Paged, Slots, Step

Array = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


class InputBuilder:
    """Turns batches into steps on the device.

    Args:
        groups: the model's states; all paged ones have one page table, all slot ones the same slots.
    """

    def __init__(self, page_size: int, device: torch.device, groups: SequenceOf[StateGroup]) -> None:
        self._page_size = page_size
        self._device = device
        self._is_slot = [group.spec.kind == "slot" for group in groups]
        self._page_rows = PageRows(page_size)

    def build(self, batch: Batch) -> Step:
        rows = batch.rows
        counts = [row.count for row in rows]
        ends = [row.end for row in rows]
        starts = list(accumulate(counts, initial=0))
        logit_rows = [last - 1 for row, last in zip(rows, starts[1:], strict=True) if row.samples]
        # few transfers: what has one dtype goes to the device together
        count = starts[-1]
        values = np.empty(3 * count + len(logit_rows), dtype=np.int64)
        self._fill(batch, starts, values[: 3 * count].reshape(3, count))
        values[3 * count :] = logit_rows
        wide = self._tensor(values)
        narrow = self._tensor(np.array(starts + ends, dtype=np.int32))
        token_ids, positions, slots, logits = torch.split_with_sizes(wide, (count, count, count, len(logit_rows)))
        query_start, context_lens = torch.split_with_sizes(narrow, (len(starts), len(ends)))
        paged = Paged(self._tensor(self._page_rows.table(rows)), slots)
        return Step(
            token_ids=token_ids,
            positions=positions,
            query_start=query_start,
            context_lens=context_lens,
            logit_rows=logits,
            groups=self._entries(batch, paged),
            page_size=self._page_size,
            decode_rows=batch.decode_rows,
            query_lens_host=tuple(counts),
            context_lens_host=tuple(ends),
        )

    def _entries(self, batch: Batch, paged: Paged) -> tuple[GroupEntry, ...]:
        if not any(self._is_slot):
            return (paged,) * len(self._is_slot)
        slots = Slots(self._tensor(np.array([row.sequence.slot for row in batch.rows], dtype=np.int64)))
        return tuple(slots if is_slot else paged for is_slot in self._is_slot)

    def _fill(self, batch: Batch, starts: SequenceOf[int], tokens: Array) -> None:
        """Token ids, positions and slots of all rows into [3, tokens]."""
        decodes, size = batch.rows[: batch.decode_rows], self._page_size
        tokens[0, : len(decodes)] = [row.sequence.tokens[row.start] for row in decodes]
        tokens[1, : len(decodes)] = [row.start for row in decodes]
        tokens[2, : len(decodes)] = [row.sequence.pages[row.start // size] * size + row.start % size for row in decodes]
        for row, start in zip(batch.rows[len(decodes) :], starts[len(decodes) :], strict=False):
            self._fill_chunk(row, tokens[:, start : start + row.count])

    def _fill_chunk(self, row: Row, tokens: Array) -> None:
        sequence, start, size = row.sequence, row.start, self._page_size
        places = np.arange(start, row.end)
        pages = np.array(sequence.pages[start // size : (row.end - 1) // size + 1], dtype=np.int64)
        tokens[0] = sequence.tokens[start : row.end]
        tokens[1] = places
        tokens[2] = pages[places // size - start // size] * size + places % size

    def _tensor(self, values: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> torch.Tensor:
        return torch.from_numpy(values).to(self._device)


__all__ = ["InputBuilder"]
