"""From a batch to the plan that a runner gets: it remembers what was said before, and says what is new."""

from __future__ import annotations

from anychip.engine.batch import Batch, Row
from anychip.engine.sequence import Sequence, State
from anychip.engine.step_plan import AnyStepPlan, Continuation, Draw, History, RowPlan, Sampling, StepPlan

NO_PAGES: list[int] = []
NO_TOKENS: list[int] = []


class _Known:
    """What the runner knows of a sequence."""

    __slots__ = ("drawn", "number", "pages", "sampling", "version")

    def __init__(self, number: int, sampling: Sampling) -> None:
        self.number = number
        self.sampling = sampling
        self.version = -1  #: of the page table that it has
        self.pages = 0  #: of it
        self.drawn = False  #: it has sampled a token for it


class _Decodes:
    """The rows of a step that may be continued."""

    __slots__ = ("ends", "pages", "sequences", "versions")

    def __init__(self, batch: Batch) -> None:
        self.sequences = [row.sequence for row in batch.rows]
        self.ends = [row.start + 1 for row in batch.rows]
        self.pages = [len(one.pages) for one in self.sequences]
        self.versions = [one.table_version for one in self.sequences]

    def new_pages(self, after: _Decodes) -> tuple[tuple[int, int], ...] | None:
        """What rows have beyond those of the step before; None: this isn't the step that continues it."""
        if (
            self.sequences != after.sequences
            or [end - 1 for end in self.ends] != after.ends
            or self.versions != after.versions
        ):
            return None
        if self.pages == after.pages:
            return ()
        grown = zip(self.sequences, after.pages, strict=True)
        return tuple((row, page) for row, (one, known) in enumerate(grown) for page in one.pages[known:])


class StepPlanner:
    """Makes the plans of one runner, or of several that get the same."""

    def __init__(self) -> None:
        self._known: dict[Sequence, _Known] = {}
        self._last_sequence = 0
        self._step = 0
        self._last: _Decodes | None = None  #: the last step, where it may be continued

    def plan(self, batch: Batch) -> AnyStepPlan:
        """Every batch must become a plan, and every plan reach the runner."""
        self._step += 1
        last, self._last = self._last, None
        if batch.decode_rows < len(batch.rows):
            return self._whole(batch)
        decodes = _Decodes(batch)
        pages = None if last is None or batch.copies or batch.state_ops else decodes.new_pages(last)
        if pages is not None:
            for row, _ in pages:
                self._known[decodes.sequences[row]].pages = decodes.pages[row]
            plan: AnyStepPlan = Continuation(self._step, pages)
        else:
            plan = self._whole(batch)
            if any(row.parent is None for row in plan.rows):
                return plan
        self._last = decodes
        return plan

    def _whole(self, batch: Batch) -> StepPlan:
        decodes, met = batch.decode_rows, self._last_sequence
        rows = [self._decode(row) for row in batch.rows[:decodes]]
        if len(batch.rows) > decodes:
            rows += [self._chunk(row) for row in batch.rows[decodes:]]
        # where nobody came and all that are known are in the batch, nobody left
        nobody = self._last_sequence == met and len(self._known) == len(rows)
        dropped = () if nobody else self._drop(batch, met)
        return StepPlan(self._step, tuple(rows), decodes, batch.copies, batch.state_ops, dropped)

    def _decode(self, row: Row) -> RowPlan:
        sequence = row.sequence
        known = self._known.get(sequence) or self._meet(sequence)
        if not known.drawn:  # the runner didn't sample its last token
            return self._chunk(row)
        step = row.end - sequence.prompt_len  # counts the token that a step in flight draws
        number, pages_from, pages = known.number, known.pages, NO_PAGES
        if known.version != sequence.table_version or pages_from != len(sequence.pages):
            pages_from, pages = self._pages(sequence, known)
        draws = (Draw(number, step, known.sampling),)
        return RowPlan(number, row.start, 1, pages_from, pages, NO_TOKENS, number, draws, sequence.slot)

    def _chunk(self, row: Row) -> RowPlan:
        sequence = row.sequence
        known = self._known.get(sequence) or self._meet(sequence)
        pages_from, pages = self._pages(sequence, known)
        tokens = sequence.tokens[row.start : row.end]
        draws = tuple(self._draw(one) for one in row.sampled)
        return RowPlan(known.number, row.start, row.count, pages_from, pages, tokens, None, draws, sequence.slot)

    def _pages(self, sequence: Sequence, known: _Known) -> tuple[int, list[int]]:
        start = known.pages if known.version == sequence.table_version else 0
        known.version, known.pages = sequence.table_version, len(sequence.pages)
        return start, sequence.pages[start:]

    def _draw(self, sequence: Sequence) -> Draw:
        known = self._known.get(sequence) or self._meet(sequence)
        step = sequence.output_count
        if known.drawn or not known.sampling.is_penalised:
            known.drawn = True
            return Draw(known.number, step, known.sampling)
        known.drawn = True
        history = History(sequence.tokens[: sequence.prompt_len], sequence.output_ids)
        return Draw(known.number, step, known.sampling, history)

    def _meet(self, sequence: Sequence) -> _Known:
        self._last_sequence += 1
        known = self._known[sequence] = _Known(self._last_sequence, sampling_of(sequence))
        return known

    def _drop(self, batch: Batch, met: int) -> tuple[int, ...]:
        """Forget all that are neither in the batch nor running, of those known before it: forks run only after it."""
        scheduled = {row.sequence for row in batch.rows}
        gone = [
            one
            for one, known in self._known.items()
            if known.number <= met and one.state is not State.RUNNING and one not in scheduled
        ]
        return tuple(self._known.pop(one).number for one in gone)


def sampling_of(sequence: Sequence) -> Sampling:
    """How a sequence's tokens are chosen."""
    params = sequence.request.params
    stops = params.stop_token_ids if params.ignore_eos else params.stop_token_ids + sequence.eos_token_ids
    return Sampling(
        seed=sequence.seed,
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        logit_bias=params.logit_bias,
        min_tokens=params.min_tokens,
        banned=stops if params.min_tokens else (),
        logprobs=params.logprobs,
    )


__all__ = ["StepPlanner", "sampling_of"]
