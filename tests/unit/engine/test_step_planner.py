"""A plan says what is new: a runner that applies the changes holds what the scheduler holds."""

import random
from collections import deque

import pytest

from anychip.engine.batch import Batch
from anychip.engine.page_rows import PageTable
from anychip.engine.sequence import State
from anychip.engine.step_plan import StepPlan
from anychip.engine.step_planner import StepPlanner, sampling_of
from support.schedules import EOS, Bench, config


class Replica:
    """What a runner knows from plans alone, and the tokens that it was told it had sampled."""

    def __init__(self) -> None:
        self.tables: dict[int, PageTable] = {}
        self.sampled: dict[int, int] = {}

    def apply(self, plan: StepPlan, batch: Batch) -> None:
        for sequence in plan.dropped:
            self.tables.pop(sequence, None)
            self.sampled.pop(sequence, None)
        for row, told in zip(batch.rows, plan.rows, strict=True):
            table = self.tables.setdefault(told.sequence, PageTable())
            assert told.pages_from <= len(table.pages)
            table.update(told.pages_from, told.pages)
            assert table.pages == row.sequence.pages
            assert [draw.sampling for draw in told.draws] == [sampling_of(one) for one in row.sampled]
            assert (told.start, told.count, told.end) == (row.start, row.count, row.end)

    def check(self, plan: StepPlan, batch: Batch) -> None:
        """When all steps before are committed: the tokens are those that the plan meant."""
        for row, told in zip(batch.rows, plan.rows, strict=True):
            if row.sequence.state is State.FINISHED:
                continue
            first = [] if told.parent is None else [self.sampled[told.parent]]
            assert first + told.tokens == row.sequence.tokens[row.start : row.end]
            assert [draw.step for draw in told.draws] == [one.output_count for one in row.sampled]


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
    steps = parents = 0
    plans: deque[StepPlan] = deque()
    while bench.scheduler.has_work or bench.flights:
        for _ in range(2 if bench.scheduler.has_work else 0):
            known = len(bench.flights)
            bench.submit()
            if len(bench.flights) == known:
                continue
            batch = bench.flights[-1][0]
            plans.append(planner.plan(batch))
            replica.apply(plans[-1], batch)
            steps += 1
            assert (plans[-1].number, plans[-1].copies) == (steps, batch.copies)
            assert plans[-1].decode_rows == batch.decode_rows
        plan, (batch, run) = plans.popleft(), bench.flights.popleft()
        replica.check(plan, batch)
        drawn = run()
        for draw, one in zip(plan.draws, drawn, strict=True):
            replica.sampled[draw.sequence] = one.tokens[-1]
        parents += sum(row.parent is not None for row in plan.rows)
        assert all(row.parent is not None for row in plan.rows[: plan.decode_rows])
        bench.take(bench.scheduler.commit(batch, drawn))
        if steps == 5 and "3" in bench.scheduler._unfinished:
            bench.abort("3")
    bench.check_outputs()
    assert parents > 50
    assert len(replica.tables) <= 8 + 1
    assert (bench.scheduler.stats().retractions > 0) == (pages == 14)
    assert (bench.scheduler.stats().steps_ahead > 5) is overlap


def test_pages_are_told_once() -> None:
    bench, planner = Bench(config(page_size=2, prefix_cache=False), 100), StepPlanner()
    bench.add("a", list(range(9)), max_tokens=6)
    told = []
    while (batch := bench.scheduler.schedule()) is not None:
        [row] = planner.plan(batch).rows
        told.append((row.pages_from, len(row.pages)))
        bench.scheduler.commit(batch, bench.model.step(batch))
    assert told == [(0, 5), (5, 0), (5, 1), (6, 0), (6, 1), (7, 0)]


def test_what_penalties_count_is_told_with_the_first_draw_only() -> None:
    bench, planner = Bench(config(), 100), StepPlanner()
    bench.add("a", [1, 2], max_tokens=3, frequency_penalty=1.0)
    bench.add("b", [1, 2], max_tokens=3)
    histories = []
    while (batch := bench.scheduler.schedule()) is not None:
        histories.append([draw.history for draw in planner.plan(batch).draws])
        bench.scheduler.commit(batch, bench.model.step(batch))
    [first, *others] = histories
    assert (first[0].prompt, first[0].output, first[1]) == ([1, 2], [], None)
    assert others == [[None, None]] * 2


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
