"""A shared expert's matrices as further experts of a mixture. Knows weights' rows and columns; reads none.

A gated MLP is a sum over its inner channels. So a shared expert of any width is exactly the sum of slots as wide as the
experts: rows of gate and up, columns of down, the last slot filled up with zeros.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from anychip.graph.ir import WeightSpec
from anychip.models.source import Source

PADDING_MAX = 0.1  #: of the shared expert's channels; zeros are read and multiplied like others


def slot_problem(down: WeightSpec, shared_down: WeightSpec) -> str | None:
    """Why slots of the experts' width can't hold the shared expert; None where they can."""
    inner, width = down.shape[2], shared_down.shape[1]
    padding = -width % inner
    if padding > PADDING_MAX * width:
        held = f"the shared expert has {width} channels, the others {inner}"
        return f"{held}: {padding} zeros would be read with it, more than a tenth"
    if down.quantized or shared_down.quantized:
        return "the experts are quantized already"
    return None


def with_slots(experts: WeightSpec, shared: Sequence[WeightSpec], *, is_down: bool) -> WeightSpec:
    """The experts' stack with slots behind it.

    Args:
        experts: [experts, 2 * inner, hidden], or [experts, hidden, inner].
        shared: gate and up, or both joined; or down.
        is_down: which of the two it is.
    """
    count, rows, columns = experts.shape
    sources = [source for spec in shared for source in spec.sources]
    slots: list[Source] = []
    if is_down:
        width = shared[0].shape[1]
        for first in range(0, width, columns):
            slots += _columns(sources, range(first, min(width, first + columns)), columns)
    else:
        inner, width = rows // 2, sum(spec.shape[0] for spec in shared) // 2
        for first in range(0, width, inner):
            part = range(first, min(width, first + inner))
            slots += [
                *_rows(sources, part, inner),
                *_rows(sources, range(width + part.start, width + part.stop), inner),
            ]
    added = sum(source.elements for source in slots) // (rows * columns)
    name = f"{experts.name.removesuffix('weight')}slots_weight"
    return WeightSpec(name, (count + added, rows, columns), (*experts.sources, *slots), dtype=experts.dtype)


def _rows(sources: Sequence[Source], wanted: range, height: int) -> Iterator[Source]:
    """Those rows of what the sources make up, filled up with zeros to the height."""
    first = 0
    for source in sources:
        rows, _ = source.taken
        inside = rows[max(0, wanted.start - first) : max(0, wanted.stop - first)]
        first += len(rows)
        if inside:
            padding = height - len(wanted) if first >= wanted.stop else 0
            yield replace(source, rows=inside, padding=(padding, 0))


def _columns(sources: Sequence[Source], wanted: range, width: int) -> Iterator[Source]:
    for source in sources:
        columns = source.taken[1][wanted.start : wanted.stop]
        yield replace(source, columns=columns, padding=(0, width - len(wanted)))


__all__ = ["PADDING_MAX", "slot_problem", "with_slots"]
