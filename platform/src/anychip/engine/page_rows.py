"""The page tables of a step's rows as one array, of which each step writes only what is new. Knows no device."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf

import numpy as np

Table = np.ndarray[tuple[int, ...], np.dtype[np.int32]]


class PageTable:
    """The pages of one sequence, as plans tell them."""

    __slots__ = ("pages", "version")

    def __init__(self) -> None:
        self.pages: list[int] = []
        self.version = 0  #: grows when an entry changes, other than by appending

    def update(self, start: int, pages: list[int]) -> None:
        """Replace everything from `start` on."""
        if start < len(self.pages):
            self.version += 1
            del self.pages[start:]
        self.pages += pages


class _Written:
    """What a line of the array holds: the first `pages` of a table, as it was at that version."""

    __slots__ = ("pages", "table", "version")

    def __init__(self) -> None:
        self.table: PageTable | None = None
        self.version = 0
        self.pages = 0


class PageRows:
    """A line for each row of the last step. A long context is written once, not once a step.

    Args:
        rows: the most of one step.
        pages: the most of one row.
    """

    def __init__(self, page_size: int, rows: int, pages: int) -> None:
        self._page_size = page_size
        self._lines: Table = np.zeros((rows, pages), dtype=np.int32)
        self._written = [_Written() for _ in range(rows)]

    def table(self, tables: SequenceOf[PageTable], ends: SequenceOf[int], rows: Iterable[int] | None = None) -> Table:
        """int32 [rows, the most pages of any]; behind a row's pages: 0. To be copied before the next call.

        Args:
            ends: how many tokens of each row's sequence have an entry after the step.
            rows: which may differ from those of the last call; None: all.
        """
        size, width = self._page_size, -(-max(ends) // self._page_size)
        for number in range(len(ends)) if rows is None else rows:
            written, table, pages = self._written[number], tables[number], -(-ends[number] // size)
            if written.table is not table or written.version != table.version or written.pages != pages:
                self._write(number, table, pages)
        return self._lines[: len(ends), :width]

    def _write(self, number: int, table: PageTable, pages: int) -> None:
        written, line = self._written[number], self._lines[number]
        start = written.pages
        if written.table is not table or written.version != table.version or start > pages:
            line[:start] = start = 0
        line[start:pages] = table.pages[start:pages]
        written.table, written.version, written.pages = table, table.version, pages


__all__ = ["PageRows", "PageTable"]
