"""A plan says what is new: a runner that applies the changes holds what the scheduler holds."""

import random
from collections.abc import Callable

import pytest

from anychip.engine.batch import Batch
from anychip.engine.page_rows import PageTable
from anychip.engine.step_plan import AnyStepPlan, Continuation, Draw, StepPlan
from anychip.engine.step_planner import StepPlanner, sampling_of
from support.schedules import EOS, Bench, config


class Replica:
    """What a runner knows from plans alone, and the tokens that it was told it had sampled."""

    def __init__(self) -> None:
        self.tables: dict[int, PageTable] = {}
        self.sampled: dict[int, int] = {}
        self.last: StepPlan | None = None
        self.later = 0

    def apply(self, plan: AnyStepPlan, batch: Batch) -> list[Draw]:
        """Follow a plan, compare with the batch; the draws that the step makes."""
        if isinstance(plan, Continuation):
            self._continue(plan, batch)
        else:
            self._begin(plan, batch)
        assert self.last is not None
        return self.last.draws

    def _continue(self, plan: Continuation, batch: Batch) -> None:
        assert self.last is not None
        assert batch.decode_rows == len(self.last.rows)
        assert (batch.copies, batch.state_ops) == ((), ())
        self.later += 1
        for row, page in plan.pages:
            self.tables[self.last.rows[row].sequence].pages.append(page)
        for row, told in zip(batch.rows, self.last.rows, strict=True):
            assert self.tables[told.sequence].pages == row.sequence.pages
            assert told.parent is not None
            assert [self.sampled[told.parent]] == row.sequence.tokens[row.start : row.end]
            assert (told.start + self.later, told.count) == (row.start, row.count)
            [draw] = told.draws
            assert draw.step + self.later == row.sequence.output_count
            assert draw.sampling == sampling_of(row.sequence)

    def _begin(self, plan: StepPlan, batch: Batch) -> None:
        assert (plan.decode_rows, plan.copies) == (batch.decode_rows, batch.copies)
        assert all(row.parent is not None for row in plan.rows[: plan.decode_rows])
        self.last, self.later = plan, 0
        for sequence in plan.dropped:
            self.tables.pop(sequence, None)
            del self.sampled[sequence]
        for row, told in zip(batch.rows, plan.rows, strict=True):
            table = self.tables.setdefault(told.sequence, PageTable())
            assert told.pages_from <= len(table.pages)
            table.update(told.pages_from, told.pages)
            assert table.pages == row.sequence.pages
            first = [] if told.parent is None else [self.sampled[told.parent]]
            assert first + told.tokens == row.sequence.tokens[row.start : row.end]
            assert [draw.step for draw in told.draws] == [one.output_count for one in row.sampled]
            assert [draw.sampling for draw in told.draws] == [sampling_of(one) for one in row.sampled]
            assert (told.start, told.count, told.end) == (row.start, row.count, row.end)


@pytest.mark.parametrize("ahead", [1, 3])
@pytest.mark.parametrize("pages", [14, 200])
@pytest.mark.parametrize("seed", range(3))
def test_a_runner_that_follows_the_plans_knows_every_page_and_token(seed: int, pages: int, ahead: int) -> None:
    random_ = random.Random(seed)
    bench = Bench(config(chunked_prefill_size=7), pages, ahead)
    bench.be_hopeful()
    planner, replica = StepPlanner(), Replica()
    for number in range(12):
        prompt = [1, 2, 3, 4, *(random_.randrange(11) for _ in range(random_.randrange(8)))]
        bench.add(str(number), prompt, max_tokens=random_.randrange(1, 25), n=random_.choice([1, 1, 3]))
    steps = continued = 0
    while (batch := bench.scheduler.schedule()) is not None:
        plan = planner.plan(batch)
        draws = replica.apply(plan, batch)
        steps += 1
        assert plan.number == steps
        continued += isinstance(plan, Continuation)
        drawn = bench.model.step(batch)
        for draw, one in zip(draws, drawn, strict=True):
            replica.sampled[draw.sequence] = one.tokens[-1]
        bench.take(bench.scheduler.commit(batch, drawn))
        if steps == 5:
            bench.abort("3")
    bench.check_outputs()
    assert ahead > 1 or continued > 5
    assert len(replica.tables) <= 8 + 1
    assert (bench.scheduler.stats().retractions > 0) == (pages == 14)


def test_pages_are_told_once() -> None:
    bench, planner = Bench(config(page_size=2, prefix_cache=False), 100), StepPlanner()
    bench.add("a", list(range(9)), max_tokens=6)
    told = []
    while (batch := bench.scheduler.schedule()) is not None:
        plan = planner.plan(batch)
        if isinstance(plan, Continuation):
            told.append(len(plan.pages))
        else:
            [row] = plan.rows
            told.append((row.pages_from, len(row.pages)))
        bench.scheduler.commit(batch, bench.model.step(batch))
    assert told == [(0, 5), (5, 0), 1, 0, 1, 0]


def plans_of(bench: Bench, steps: int, after: dict[int, Callable[[], object]] | None = None) -> list[str]:
    """The kinds of plans of so many steps; what is done before some of them."""
    planner, kinds = StepPlanner(), []
    for step in range(steps):
        (after or {}).get(step, lambda: None)()
        batch = bench.scheduler.schedule()
        assert batch is not None
        kinds.append(type(planner.plan(batch)).__name__)
        bench.scheduler.commit(batch, bench.model.step(batch))
    return kinds


WHOLE, NEXT = "StepPlan", "Continuation"


def test_decodes_that_go_on_are_continued() -> None:
    bench = Bench(config(), 100)
    bench.add("a", [1, 2], max_tokens=9)
    bench.add("b", [3], max_tokens=9)
    assert plans_of(bench, 7) == [WHOLE, WHOLE, NEXT, NEXT, NEXT, NEXT, NEXT]


def test_a_step_with_other_rows_is_told_in_whole() -> None:
    bench = Bench(config(), 100)
    bench.add("a", [1, 2], max_tokens=20)
    bench.add("b", [3], max_tokens=20)
    comes, goes = (lambda: bench.add("c", [4], max_tokens=20)), (lambda: bench.abort("b"))
    kinds = plans_of(bench, 8, {3: comes, 6: goes})
    assert kinds == [WHOLE, WHOLE, NEXT, WHOLE, WHOLE, NEXT, WHOLE, NEXT]


def test_forks_are_continued_when_their_copies_are_made() -> None:
    bench = Bench(config(page_size=4), 100)
    bench.add("a", [1, 2], max_tokens=9, n=3)
    assert plans_of(bench, 4) == [WHOLE, WHOLE, NEXT, NEXT]


def test_a_step_after_several_tokens_at_once_is_told_in_whole() -> None:
    bench, planner = Bench(config(), 100, 3), StepPlanner()
    bench.add("a", [1, 2], max_tokens=60)
    drawn_before, found = [0, 0], []
    while (batch := bench.scheduler.schedule()) is not None:
        found.append(isinstance(planner.plan(batch), Continuation))
        drawn = bench.model.step(batch)
        drawn_before.append(len(drawn[0].tokens))
        bench.scheduler.commit(batch, drawn)
    assert found[2:] == [count == 1 for count in drawn_before[3:-1]]
    assert {True, False} <= set(found[2:])


def test_what_penalties_count_is_told_with_the_first_draw_only() -> None:
    bench, planner = Bench(config(), 100), StepPlanner()
    bench.add("a", [1, 2], max_tokens=3, frequency_penalty=1.0)
    bench.add("b", [1, 2], max_tokens=3)
    histories = []
    while (batch := bench.scheduler.schedule()) is not None:
        plan = planner.plan(batch)
        histories.append([] if isinstance(plan, Continuation) else [draw.history for draw in plan.draws])
        bench.scheduler.commit(batch, bench.model.step(batch))
    [first, *others] = histories
    assert (first[0].prompt, first[0].output, first[1]) == ([1, 2], [], None)
    assert others == [[None, None], []]


def test_a_minimum_of_tokens_bans_what_would_end_the_text() -> None:
    bench = Bench(config(), 1000)
    found = {}
    for name, params in {
        "end": {"ignore_eos": False},
        "ignored": {},
        "free": {"min_tokens": 0},
    }.items():
        bench.add(name, [1], **{"min_tokens": 2, "stop_token_ids": (9,), **params})
    batch = bench.scheduler.schedule()
    assert batch is not None
    for row in batch.rows:
        found[row.sequence.id] = sampling_of(row.sequence).banned
    assert found == {"end": (9, EOS), "ignored": (9,), "free": ()}
