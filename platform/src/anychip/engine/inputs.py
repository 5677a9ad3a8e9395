"""A batch's rows as the tensors of one forward. Knows slots and positions; knows no model."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from anychip.engine.batch import Batch, Row
from anychip.engine.sequence import Sequence
from anychip_sdk.ops import AttentionBatch

Array = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


class StepInputs(NamedTuple):
    """The arguments of a generated forward, in its order."""

    token_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    batch: AttentionBatch
    logit_rows: torch.Tensor


class InputBuilder:
    """Turns batches into tensors on the device."""

    def __init__(self, page_size: int, device: torch.device) -> None:
        self._page_size = page_size
        self._device = device

    def build(self, batch: Batch) -> StepInputs:
        rows = batch.rows
        counts = [row.count for row in rows]
        contexts = [row.end for row in rows]
        token_ids = np.empty(batch.tokens, dtype=np.int64)
        positions = np.empty(batch.tokens, dtype=np.int64)
        slots = np.empty(batch.tokens, dtype=np.int64)
        at = 0
        for row in rows:
            self._fill(row, token_ids[at : at + row.count], positions[at:], slots[at:])
            at += row.count
        query_start = np.zeros(len(rows) + 1, dtype=np.int32)
        np.cumsum(counts, out=query_start[1:])
        attention = AttentionBatch(
            query_start=self._tensor(query_start),
            context_lens=self._tensor(np.array(contexts, dtype=np.int32)),
            page_table=self._tensor(self._page_table(rows)),
            slots=self._tensor(slots),
            page_size=self._page_size,
            decode_rows=batch.decode_rows,
            query_lens_host=tuple(counts),
            context_lens_host=tuple(contexts),
        )
        logit_rows = [int(end) - 1 for row, end in zip(rows, query_start[1:], strict=True) if row.samples]
        return StepInputs(
            self._tensor(token_ids),
            self._tensor(positions),
            attention.slots,
            attention,
            torch.tensor(logit_rows, dtype=torch.int64, device=self._device),
        )

    def _fill(self, row: Row, token_ids: Array, positions: Array, slots: Array) -> None:
        sequence, start, size = row.sequence, row.start, self._page_size
        if row.count == 1:
            token_ids[0] = sequence.tokens[start]
            positions[0] = start
            slots[0] = sequence.pages[start // size] * size + start % size
            return
        token_ids[:] = sequence.tokens[start : row.end]
        places = np.arange(start, row.end)
        positions[: row.count] = places
        pages = np.array(sequence.pages[start // size : (row.end - 1) // size + 1], dtype=np.int64)
        slots[: row.count] = pages[places // size - start // size] * size + places % size

    def _page_table(self, rows: tuple[Row, ...]) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
        used = [self._pages(row.sequence, row.end) for row in rows]
        table = np.zeros((len(rows), max(map(len, used))), dtype=np.int32)
        for line, pages in zip(table, used, strict=True):
            line[: len(pages)] = pages
        return table

    def _pages(self, sequence: Sequence, tokens: int) -> list[int]:
        return sequence.pages[: -(-tokens // self._page_size)]

    def _tensor(self, values: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> torch.Tensor:
        return torch.from_numpy(values).to(self._device)


__all__ = ["InputBuilder", "StepInputs"]
