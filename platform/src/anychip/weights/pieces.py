"""Read a parameter's sources piece by piece, and count what is read. Knows rows and columns; knows no device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from anychip.models.source import Source
from anychip.weights.checkpoint import Checkpoint
from anychip.weights.quantized import BlockFormat, Bytes

Counts = npt.NDArray[np.int32]


class Piece(NamedTuple):
    """Some of a source's rows, and where in the parameter they begin."""

    source: Source
    rows: range  #: of the tensor's matrix; empty for rows of zeros
    zeros: int  #: rows of zeros
    first: int  #: number of the parameter's flat list

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.rows) + self.zeros, self.source.size[1]

    @property
    def elements(self) -> int:
        rows, columns = self.shape
        return rows * columns


def pieces(sources: Sequence[Source], nbytes: int) -> Iterator[Piece]:
    """Pieces that take so many bytes in float32, a row at least, in the order of the parameter."""
    first = 0
    for source in sources:
        rows, _ = source.taken
        step = max(1, nbytes // (4 * max(1, source.size[1])))
        for stretch in _stretches(source, rows):
            for start in range(0, len(stretch), step):
                piece = Piece(source, stretch[start : start + step], 0, first)
                yield piece
                first += piece.elements
        for start in range(0, source.padding[0], step):
            piece = Piece(source, range(0), min(step, source.padding[0] - start), first)
            yield piece
            first += piece.elements


def _stretches(source: Source, rows: range) -> Iterator[range]:
    """A transposed stack is read matrix by matrix."""
    if not source.transposed:
        yield rows
        return
    height = source.shape[-1]
    while rows:
        inside = len(range(rows[0], min(rows.stop, (rows[0] // height + 1) * height), rows.step))
        yield rows[:inside]
        rows = rows[inside:]


def read(checkpoint: Checkpoint, piece: Piece) -> torch.Tensor:
    """The piece's numbers on the host, [rows, columns], as the file has them."""
    source, rows = piece.source, piece.rows
    if not rows:
        return torch.zeros(piece.shape, dtype=checkpoint.tensors[source.tensor].dtype)
    if source.transposed:
        width, height = source.shape[-2:]
        at = rows.start // height
        found = checkpoint.read(source.tensor, slice(at * width, (at + 1) * width)).T
        found = found[rows.start - at * height : rows[-1] + 1 - at * height : rows.step]
    else:
        found = checkpoint.read(source.tensor, slice(rows.start, rows[-1] + 1))[:: rows.step]
    _, columns = source.taken
    found = found.reshape(len(rows), -1)[:, columns.start : columns.stop : columns.step]
    return functional.pad(found, (0, source.padding[1])) if source.padding[1] else found


def read_blocks(checkpoint: Checkpoint, piece: Piece) -> tuple[Bytes, BlockFormat]:
    """The piece as it is stored, [rows, bytes per row]; zero bytes are zeros in every format of blocks.

    Raises:
        ValueError: columns that begin or end within a block, or a transposed source.
    """
    source, rows = piece.source, piece.rows
    some = rows or range(1)
    raw, block = checkpoint.read_blocks(source.tensor, slice(some.start, some[-1] + 1))
    _, columns = source.taken
    ends = (columns.start, columns.stop, source.padding[1])
    if source.transposed or columns.step != 1 or any(end % block.values for end in ends):
        message = (
            f"tensor {source.tensor}: columns {columns} are no whole blocks of {block.values}, as {block.name} has"
        )
        raise ValueError(message)
    start, stop, padding = (end // block.values * block.nbytes for end in ends)
    raw = raw[:: some.step, start:stop] if rows else np.zeros((piece.zeros, stop - start), np.uint8)
    return np.ascontiguousarray(np.pad(raw, ((0, 0), (0, padding)))), block


def part_of(sources: Sequence[Source], rows: range) -> Iterator[Source]:
    """Some of a parameter's rows, which are counted over all its sources."""
    first = 0
    for source in sources:
        height, (taken, _) = source.size[0], source.taken
        start, stop = max(rows.start - first, 0), min(rows.stop - first, height)
        if start < stop:
            kept = taken[start : min(stop, len(taken))]
            yield replace(source, rows=kept, padding=(stop - start - len(kept), source.padding[1]))
        first += height


def assembled(sources: Sequence[Source], tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The numbers of whole tensors, row by row, as one flat tensor."""
    return torch.cat([_of_whole(source, tensors[source.tensor]).flatten() for source in sources])


def _of_whole(source: Source, tensor: torch.Tensor) -> torch.Tensor:
    matrix = (tensor.transpose(-1, -2) if source.transposed else tensor).reshape(source.matrix)
    rows, columns = source.taken
    found = matrix[rows.start : rows.stop : rows.step, columns.start : columns.stop : columns.step]
    return functional.pad(found, (0, source.padding[1], 0, source.padding[0]))


class Coverage(NamedTuple):
    """How a tensor is read."""

    is_whole: bool  #: nothing of it is left out
    is_repeated: bool  #: something of it is read twice


def coverage(plain: Sequence[Source], quantized: Sequence[Source]) -> Coverage:
    """How sources read one tensor. What is read plain may be read once more to be quantized."""
    rows, columns = (*plain, *quantized)[0].matrix
    counted = _counts(plain), _counts(quantized)
    # parts of rows must be the same or have nothing in common; rows are counted for each part
    width = np.zeros(columns, np.int32)
    is_whole, is_repeated = True, False
    for part in counted[0].keys() | counted[1].keys():
        times = np.maximum(*(counts.get(part, np.zeros(rows, np.int32)) for counts in counted))
        is_whole &= bool(times.all())
        is_repeated |= bool((times > 1).any())
        width[part.start : part.stop : part.step] += 1
    return Coverage(is_whole and bool(width.all()), is_repeated or bool((width > 1).any()))


def _counts(sources: Sequence[Source]) -> dict[range, Counts]:
    """How often each row is read, for each part of the rows."""
    found: dict[range, Counts] = {}
    for source in sources:
        rows, part = source.taken
        times = found.setdefault(part, np.zeros(source.matrix[0], np.int32))
        times[rows.start : rows.stop : rows.step] += 1
    return found


__all__ = ["Coverage", "Piece", "assembled", "coverage", "part_of", "pieces", "read", "read_blocks"]
