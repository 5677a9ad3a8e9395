"""A plan's rows as one step on the device. Knows slots and positions; knows no sequence, pool or model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as SequenceOf
from itertools import accumulate

import numpy as np
import torch

from anychip.engine.page_rows import PageRows, PageTable
from anychip.engine.step_plan import RowPlan, StepPlan
from anychip_sdk.state import StateGroup
from anychip_sdk.step import GroupEntry, Paged, Slots, Step, StepLimits

Array = np.ndarray[tuple[int, ...], np.dtype[np.int64]]

AT_ONCE = 16  #: steps whose numbers are counted on together: it takes as long for many as for one


class InputBuilder:
    """Turns plans into steps on the device.

    Args:
        groups: the model's states; all paged ones have one page table, all slot ones the same slots.
        limits: the most of one step.
        to_device: brings a host tensor to the device without waiting for it; None: torch's way.
    """

    def __init__(
        self,
        page_size: int,
        groups: SequenceOf[StateGroup],
        limits: StepLimits,
        to_device: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        self._page_size = page_size
        self._to_device = to_device or (lambda values: values.to(limits.device))
        self._is_slot = [group.spec.kind == "slot" for group in groups]
        self._page_rows = PageRows(page_size, limits.rows, limits.pages)
        self._last: Step | None = None  # the step made last, which `advance` goes on from
        self._counted: tuple[Iterator[torch.Tensor], Iterator[torch.Tensor]] | None = None  # its positions and contexts
        self._counted_slots: Iterator[torch.Tensor] | None = None  # and slots, while no row begins a page

    def build(self, plan: StepPlan, tables: SequenceOf[PageTable], sampled: torch.Tensor | None) -> Step:
        """The step of a plan.

        Args:
            tables: of the plan's rows.
            sampled: int64, on the device: the first token of each row that has a parent.
        """
        rows = plan.rows
        counts = [row.count for row in rows]
        ends = [row.start + row.count for row in rows]
        starts = list(accumulate(counts, initial=0))
        logit_rows = [last - 1 for row, last in zip(rows, starts[1:], strict=True) if row.draws]
        # few transfers: what has one dtype goes to the device together
        count = starts[-1]
        values = np.empty(3 * count + len(logit_rows), dtype=np.int64)
        self._fill(plan, tables, starts, values[: 3 * count].reshape(3, count))
        values[3 * count :] = logit_rows
        wide = self._tensor(values)
        table = self._page_rows.table(tables, ends)
        narrow = self._tensor(np.concatenate((table.reshape(-1), starts, ends), dtype=np.int32, casting="unsafe"))
        token_ids, positions, slots, logits = torch.split_with_sizes(wide, (count, count, count, len(logit_rows)))
        if sampled is not None:
            token_ids = self._with_sampled(plan, starts, token_ids, sampled)
        pages, query_start, context_lens = torch.split_with_sizes(narrow, (table.size, len(starts), len(ends)))
        paged = Paged(pages.view(table.shape), slots)
        self._counted = self._counted_slots = None
        self._last = step = Step(
            token_ids=token_ids,
            positions=positions,
            query_start=query_start,
            context_lens=context_lens,
            logit_rows=logits,
            groups=self._entries(plan, paged),
            page_size=self._page_size,
            decode_rows=plan.decode_rows,
            query_lens_host=tuple(counts),
            context_lens_host=tuple(ends),
        )
        return step

    def advance(self, tables: SequenceOf[PageTable], sampled: torch.Tensor) -> Step:
        """The last step once more, each row one token further: its tensors are those of the last one, or these plus 1.

        Args:
            tables: of the last step's rows, which were decodes alone.
            sampled: int64 [rows], on the device.

        Raises:
            ValueError: there was no such step.
        """
        last = self._last
        if last is None or last.decode_rows < last.rows:
            message = "a step of decodes alone can be continued, and the last one was none"
            raise ValueError(message)
        if self._counted is None:
            self._counted = _counted_on(last.positions), _counted_on(last.context_lens)
        positions, context_lens = self._counted
        ends = tuple([end + 1 for end in last.context_lens_host])
        self._last = step = Step(
            token_ids=sampled,
            positions=next(positions),
            query_start=last.query_start,
            context_lens=next(context_lens),
            logit_rows=last.logit_rows,
            groups=self._advanced(last.groups, tables, ends),
            page_size=last.page_size,
            decode_rows=last.decode_rows,
            query_lens_host=last.query_lens_host,
            context_lens_host=ends,
        )
        return step

    def _advanced(
        self, groups: tuple[GroupEntry, ...], tables: SequenceOf[PageTable], ends: tuple[int, ...]
    ) -> tuple[GroupEntry, ...]:
        """Slots of states stay; so does the page table while no row begins a page."""
        paged = next((entry for entry in groups if isinstance(entry, Paged)), None)
        if paged is None:
            return groups
        size = self._page_size
        begun = [row for row, end in enumerate(ends) if (end - 1) % size == 0]
        if begun:
            table = self._tensor(self._page_rows.table(tables, ends, begun).copy())
            places = np.array(self._slots(tables, [end - 1 for end in ends]), dtype=np.int64)
            after = Paged(table, self._tensor(places))
            self._counted_slots = None
        else:
            self._counted_slots = self._counted_slots or _counted_on(paged.slots)
            after = Paged(paged.page_table, next(self._counted_slots))
        return tuple([after if isinstance(entry, Paged) else entry for entry in groups])

    def _slots(self, tables: SequenceOf[PageTable], positions: SequenceOf[int]) -> list[int]:
        size = self._page_size
        return [
            table.pages[place // size] * size + place % size for table, place in zip(tables, positions, strict=False)
        ]

    def _entries(self, plan: StepPlan, paged: Paged) -> tuple[GroupEntry, ...]:
        if not any(self._is_slot):
            return (paged,) * len(self._is_slot)
        slots = Slots(self._tensor(np.array([row.slot for row in plan.rows], dtype=np.int64)))
        return tuple(slots if is_slot else paged for is_slot in self._is_slot)

    def _with_sampled(
        self, plan: StepPlan, starts: SequenceOf[int], token_ids: torch.Tensor, sampled: torch.Tensor
    ) -> torch.Tensor:
        count = len(sampled)
        if count == len(token_ids):
            return sampled
        if count <= plan.decode_rows:
            token_ids[:count] = sampled
        else:
            token_ids[list(starts[:count])] = sampled
        return token_ids

    def _fill(self, plan: StepPlan, tables: SequenceOf[PageTable], starts: SequenceOf[int], tokens: Array) -> None:
        """Token ids, positions and slots of all rows into [3, tokens]."""
        count = plan.decode_rows
        decodes = plan.rows[:count]
        tokens[0, :count] = [row.tokens[0] if row.parent is None else 0 for row in decodes]
        tokens[1, :count] = places = [row.start for row in decodes]
        tokens[2, :count] = self._slots(tables, places)
        for number in range(count, len(plan.rows)):
            start = starts[number]
            row = plan.rows[number]
            self._fill_chunk(row, tables[number].pages, tokens[:, start : start + row.count])

    def _fill_chunk(self, row: RowPlan, held: list[int], tokens: Array) -> None:
        start, end, size = row.start, row.end, self._page_size
        places = np.arange(start, end)
        pages = np.array(held[start // size : (end - 1) // size + 1], dtype=np.int64)
        tokens[0] = row.tokens if row.parent is None else [0, *row.tokens]
        tokens[1] = places
        tokens[2] = pages[places // size - start // size] * size + places % size

    def _tensor(self, values: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> torch.Tensor:
        return self._to_device(torch.from_numpy(values))


def _counted_on(numbers: torch.Tensor) -> Iterator[torch.Tensor]:
    """These plus 1, plus 2 and so on."""
    steps = torch.arange(1, AT_ONCE + 1, dtype=numbers.dtype, device=numbers.device).unsqueeze(1)
    while True:
        several = numbers + steps
        yield from several.unbind()
        numbers = several[-1]


__all__ = ["InputBuilder"]
