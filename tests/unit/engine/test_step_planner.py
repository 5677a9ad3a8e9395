"""A plan says what is new: a runner that applies the changes holds what the scheduler holds."""

import random
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import pytest

from anychip.engine.batch import Batch
from anychip.engine.page_rows import PageTable
from anychip.engine.sequence import State
from anychip.engine.step_plan import AnyStepPlan, Continuation, Draw, RowPlan
from anychip.engine.step_planner import StepPlanner, sampling_of
from support.schedules import EOS, Bench, config


class Told(NamedTuple):
    """What a plan said: rows, of the last whole plan where it is a continuation, and how many tokens later they are."""

    rows: tuple[RowPlan, ...]
    later: int

    @property
    def draws(self) -> list[Draw]:
        return [draw for row in self.rows for draw in row.draws]


class Replica:
    """What a runner knows from plans alone, and the tokens that it was told it had sampled."""

    def __init__(self) -> None:
        self.tables: dict[int, PageTable] = {}
        self.sampled: dict[int, int] = {}
        self.last = Told((), 0)

    def apply(self, plan: AnyStepPlan, batch: Batch) -> Told:
        if isinstance(plan, Continuation):
            assert (batch.decode_rows, batch.copies, batch.state_ops) == (len(self.last.rows), (), ())
            assert all(row.parent is not None for row in self.last.rows)
            for row, page in plan.pages:
                self.tables[self.last.rows[row].sequence].pages.append(page)
            self.last = Told(self.last.rows, self.last.later + 1)
        else:
            assert (plan.decode_rows, plan.copies) == (batch.decode_rows, batch.copies)
            for sequence in plan.dropped:
                self.tables.pop(sequence, None)
                self.sampled.pop(sequence, None)
            for row in plan.rows:
                table = self.tables.setdefault(row.sequence, PageTable())
                assert row.pages_from <= len(table.pages)
                table.update(row.pages_from, row.pages)
            self.last = Told(plan.rows, 0)
        for row, told in zip(batch.rows, self.last.rows, strict=True):
            assert self.tables[told.sequence].pages == row.sequence.pages
            assert [draw.sampling for draw in told.draws] == [sampling_of(one) for one in row.sampled]
            assert (told.start + self.last.later, told.count) == (row.start, row.count)
        return self.last

    def check(self, told: Told, batch: Batch) -> None:
        """When all steps before are committed: the tokens are those that the plan meant."""
        for row, one in zip(batch.rows, told.rows, strict=True):
            if row.sequence.state is State.FINISHED:
                continue
            first = [] if one.parent is None else [self.sampled[one.parent]]
            assert first + one.tokens == row.sequence.tokens[row.start : row.end]
            assert [draw.step + told.later for draw in one.draws] == [other.output_count for other in row.sampled]


@pytest.mark.parametrize(("ahead", "overlap"), [(1, False), (3, False), (1, True)])
@pytest.mark.parametrize("pages", [14, 200])
@pytest.mark.parametrize("seed", range(3))
def test_a_runner_that_follows_the_plans_knows_every_page_and_token(
    seed: int, pages: int, ahead: int, overlap: bool
) -> None:
    random_ = random.Random(seed)
    bench = Bench(config(chunked_prefill_size=7, overlap=overlap), pages, ahead)
    bench.be_hopeful()
    planner, replica = StepPlanner(), Replica()
    for number in range(12):
        prompt = [1, 2, 3, 4, *(random_.randrange(11) for _ in range(random_.randrange(8)))]
        stops = (number,) if overlap and number < 8 else ()
        bench.add(
            str(number), prompt, max_tokens=random_.randrange(1, 25), n=random_.choice([1, 1, 3]), stop_token_ids=stops
        )
    steps = continued = 0
    waiting: deque[Told] = deque()
    while bench.scheduler.has_work or bench.flights:
        for _ in range(2 if bench.scheduler.has_work else 0):
            known = len(bench.flights)
            bench.submit()
            if len(bench.flights) == known:
                continue
            batch = bench.flights[-1][0]
            plan = planner.plan(batch)
            waiting.append(replica.apply(plan, batch))
            steps += 1
            assert plan.number == steps
            continued += isinstance(plan, Continuation)
        told, (batch, run) = waiting.popleft(), bench.flights.popleft()
        replica.check(told, batch)
        drawn = run()
        for draw, one in zip(told.draws, drawn, strict=True):
            replica.sampled[draw.sequence] = one.tokens[-1]
        bench.take(bench.scheduler.commit(batch, drawn))
        if steps == 5 and "3" in bench.scheduler._unfinished:
            bench.abort("3")
    bench.check_outputs()
    assert ahead > 1 or continued > 5
    assert len(replica.tables) <= 8 + 1
    assert (bench.scheduler.stats().retractions > 0) == (pages == 14)
    assert (bench.scheduler.stats().steps_ahead > 5) is overlap


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
