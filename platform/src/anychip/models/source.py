"""Where a parameter's numbers stand in a checkpoint. Knows names and shapes; reads no file.

A module's parameter has the shape that the engine wants. Where checkpoints say it otherwise (fused projections, a
tensor per expert, pairs of a rotation side by side), the family's config names the pieces, and the loader joins them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    """Some numbers of one tensor, as a matrix of rows.

    A parameter is its sources' numbers, row by row, one source after the other. A tensor of one dimension has rows of
    one number; of more than two dimensions all but the last count rows: [experts, out, in] has experts * out.

    Attributes:
        tensor: the checkpoint's name.
        shape: that the whole tensor must have.
        rows: which rows, in which order; None: all. A range with steps takes the even ones, for instance.
        columns: which stretch of each row; None: all.
        transposed: the last two dimensions change places before rows and columns are counted.
        padding: rows of zeros that follow, and columns of zeros that end each row.
    """

    tensor: str
    shape: tuple[int, ...]
    rows: range | None = None
    columns: range | None = None
    transposed: bool = False
    padding: tuple[int, int] = (0, 0)

    @property
    def is_whole(self) -> bool:
        """Whether it is the tensor as it is."""
        return self.rows is None and self.columns is None and not self.transposed and self.padding == (0, 0)

    @property
    def matrix(self) -> tuple[int, int]:
        """Rows and columns of the tensor."""
        if len(self.shape) < 2:
            return math.prod(self.shape), 1
        shape = (*self.shape[:-2], *self.shape[:-3:-1]) if self.transposed else self.shape
        return math.prod(shape[:-1]), shape[-1]

    @property
    def taken(self) -> tuple[range, range]:
        """The rows and columns that are read."""
        rows, columns = self.matrix
        return (
            range(rows) if self.rows is None else self.rows,
            range(columns) if self.columns is None else self.columns,
        )

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns with the padding."""
        rows, columns = self.taken
        return len(rows) + self.padding[0], len(columns) + self.padding[1]

    @property
    def elements(self) -> int:
        """Numbers that it gives, zeros included."""
        rows, columns = self.size
        return rows * columns


#: a parameter's name and shape -> its sources
SourcesOf = Callable[[str, tuple[int, ...]], tuple[Source, ...]]


def same_name(name: str, shape: tuple[int, ...]) -> tuple[Source, ...]:
    """The tensor of the same name and shape."""
    return (Source(name, shape),)


__all__ = ["Source", "SourcesOf", "same_name"]
