"""The page tables of a step's rows as one array, of which each step writes only what is new. Knows no device."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import NamedTuple

import numpy as np

from anychip.engine.batch import Row
from anychip.engine.sequence import Sequence

Table = np.ndarray[tuple[int, ...], np.dtype[np.int32]]


class _Written(NamedTuple):
    """What a line of the array holds: the first `pages` of the sequence's table, as it was at that version."""

    sequence: Sequence | None
    version: int
    pages: int


class PageRows:
    """A line for each row of the last step. A long context is written once, not once a step."""

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._lines: Table = np.zeros((0, 0), dtype=np.int32)
        self._written: list[_Written] = []

    def table(self, rows: SequenceOf[Row]) -> Table:
        """int32 [rows, the most pages of any], a new array; behind a row's pages: 0."""
        used = [-(-row.end // self._page_size) for row in rows]
        width = max(used)
        self._reserve(len(rows), width)
        for number, (row, pages) in enumerate(zip(rows, used, strict=True)):
            self._write(number, row.sequence, pages)
        table: Table = self._lines[: len(rows), :width].copy()
        return table

    def _write(self, number: int, sequence: Sequence, pages: int) -> None:
        holder, version, start = self._written[number]
        if holder is sequence and version == sequence.table_version and start == pages:
            return
        line = self._lines[number]
        if holder is not sequence or version != sequence.table_version or start > pages:
            line[:start] = start = 0
        line[start:pages] = sequence.pages[start:pages]
        self._written[number] = _Written(sequence, sequence.table_version, pages)

    def _reserve(self, rows: int, width: int) -> None:
        height, room = self._lines.shape
        if rows <= height and width <= room:
            return
        more_rows, more_width = (0 if rows <= height else rows), (0 if width <= room else width)
        self._lines = np.pad(self._lines, ((0, more_rows), (0, more_width)))
        self._written += [_Written(None, 0, 0)] * more_rows


__all__ = ["PageRows"]
