"""When a step is scheduled while another runs, when it waits, and what is taken for granted then."""

from typing import Any

import pytest

from anychip.engine import ahead
from anychip.engine.batch import Batch
from anychip.engine.step_plan import Drawn
from support.schedules import Bench, config


def made(pages: int = 100, *, slots: int = 0, **changes: Any) -> Bench:
    return Bench(config(overlap=True, **changes), pages, slots=slots)


def scheduled(bench: Bench) -> Batch:
    count = len(bench.flights)
    bench.submit()
    assert len(bench.flights) == count + 1
    return bench.flights[-1][0]


def reason(bench: Bench) -> str | None:
    """Why nothing can be scheduled behind what is in flight; the scheduler does as it says."""
    scheduler = bench.scheduler
    decodes = ahead.following(scheduler._decoding, scheduler._prefilling, scheduler._max_length)
    found = ahead.obstacle(scheduler._in_flight, decodes, scheduler._tables)
    if found is not None:
        assert scheduler.schedule() is None
    return found


def rows(batch: Batch) -> list[tuple[str, int, int, int]]:
    return [(row.sequence.id, row.start, row.count, row.samples) for row in batch.rows]


def test_decodes_go_on_from_the_token_that_is_being_drawn_and_prompts_from_their_chunk() -> None:
    bench = made(chunked_prefill_size=4)
    bench.add("a", [1, 2, 3], max_tokens=9)
    bench.add("b", [5] * 9, max_tokens=9)
    assert rows(scheduled(bench)) == [("a", 0, 3, 1), ("b", 0, 1, 0)]
    batch = scheduled(bench)
    assert rows(batch) == [("a", 3, 1, 1), ("b", 1, 4, 0)]
    assert batch.decode_rows == 1


def test_a_new_request_is_admitted_behind_a_running_step() -> None:
    bench = made()
    bench.add("a", [1, 2, 3], max_tokens=9)
    scheduled(bench)
    bench.add("b", [5, 6], max_tokens=9)
    assert rows(scheduled(bench)) == [("a", 3, 1, 1), ("b", 0, 2, 1)]


def test_without_overlap_nothing_is_scheduled_ahead() -> None:
    bench = Bench(config(), 100)
    bench.add("a", [1], max_tokens=9)
    scheduled(bench)
    assert bench.scheduler.schedule() is None


def test_two_steps_are_the_most() -> None:
    bench = made()
    bench.add("a", [1], max_tokens=9)
    scheduled(bench)
    assert reason(bench) is None
    scheduled(bench)
    assert reason(bench) == ahead.TOO_MANY


def test_a_fork_waits_for_its_prompt() -> None:
    bench = made()
    bench.add("a", [1, 2], max_tokens=9, n=2)
    bench.add("b", [1, 2], max_tokens=9)
    scheduled(bench)
    assert reason(bench) == ahead.FORKS
    bench.drain()
    bench.check_outputs()
    assert bench.scheduler.stats().steps_ahead > 5, "the forks themselves overlap"


@pytest.mark.parametrize(
    "penalty", [{"presence_penalty": 1.0}, {"frequency_penalty": 0.5}, {"repetition_penalty": 1.1}]
)
def test_a_penalty_waits_for_the_token_that_it_counts(penalty: dict[str, float]) -> None:
    bench = made(chunked_prefill_size=2)
    bench.add("a", [1, 2, 3], max_tokens=3, **penalty)
    scheduled(bench)
    assert reason(bench) is None, "a chunk that draws nothing counts nothing"
    scheduled(bench)
    bench.commit()
    assert reason(bench) == ahead.PENALTIES


def test_nothing_is_retracted_before_what_runs_is_committed() -> None:
    bench = made(4, page_size=2, prefix_cache=False)
    bench.be_hopeful()
    bench.add("a", [1, 2, 3], max_tokens=9)
    bench.add("b", [4, 5, 6], max_tokens=9)
    scheduled(bench)
    scheduled(bench)  # fills the last page of both
    bench.commit()
    assert reason(bench) == ahead.PAGES
    bench.commit()
    scheduled(bench)
    assert bench.scheduler.stats().retractions == 1


def test_a_chunk_that_may_leave_a_snapshot_is_committed_first() -> None:
    bench = made(page_size=2, slots=6)
    bench.add("a", [1, 2, 3, 4, 5], max_tokens=9)
    scheduled(bench)
    assert reason(bench) == ahead.SNAPSHOTS
    bench.drain()
    bench.check_outputs()
    assert bench.scheduler.stats().steps_ahead > 5, "decodes of a model with slots overlap"
    without = made(page_size=2, slots=6, prefix_cache=False)
    without.add("a", [1, 2, 3, 4, 5], max_tokens=9)
    scheduled(without)
    assert reason(without) is None


@pytest.mark.parametrize(
    "limit", [{"max_tokens": 2}, {"max_tokens": None, "context": 5}, {"max_tokens": None, "pages": 1}]
)
def test_who_ends_by_its_length_has_no_row_behind(limit: dict[str, Any]) -> None:
    context = limit.pop("context", 1000)
    bench = made(limit.pop("pages", 100), context_length=context)
    bench.add("a", [1, 2, 3], **limit)
    scheduled(bench)
    assert rows(scheduled(bench)) == [("a", 3, 1, 1)]
    bench.commit()
    assert bench.scheduler.schedule() is None
    assert bench.last["a", 0].finish_reason is None
    assert reason(bench) is None


@pytest.mark.parametrize("is_aborted", [False, True])
def test_a_row_of_a_text_that_has_ended_is_computed_for_nobody(is_aborted: bool) -> None:
    """Its pages are free at once, and the entry that it writes is in none that is cached."""
    free = Bench(config(page_size=2), 100)
    free.add("a", [1, 2, 3], max_tokens=2)
    free.drain()
    stop = () if is_aborted else tuple(free.tokens["a", 0][:1])
    bench = made(page_size=2)
    bench.add("a", [1, 2, 3], max_tokens=9, stop_token_ids=stop)
    scheduled(bench)
    second = scheduled(bench)
    if is_aborted:
        bench.abort("a")
    batch, run = bench.flights.popleft()
    bench.take(bench.scheduler.commit(batch, run()))
    stats = bench.scheduler.stats()
    assert bench.last["a", 0].finish_reason == ("abort" if is_aborted else "stop")
    assert stats.pages_in_flight == stats.pages_protected == 0
    assert stats.pages_evictable == (0 if is_aborted else 1), "of the prompt's three tokens two are a whole page"
    assert bench.scheduler.commit(second, [Drawn((7,))]) == []
    bench.check_empty()


def test_pages_that_were_another_s_are_written_behind_it() -> None:
    """The pool has room for one: whoever comes next gets the very pages that the stale row writes to, and is right."""
    free = Bench(config(page_size=2), 100)
    free.add("a", [1, 2, 3], max_tokens=4)
    free.drain()
    bench = made(4, page_size=2)
    bench.add("a", [1, 2, 3], max_tokens=5, stop_token_ids=tuple(free.tokens["a", 0][2:3]))
    bench.add("b", [4, 5, 6, 7], max_tokens=4)
    bench.drain()
    bench.check_outputs()
    bench.check_empty()
    assert bench.scheduler.stats().steps_ahead > 2


def test_several_tokens_at_once_are_refused_where_a_step_runs_behind_them() -> None:
    bench = made()
    bench.add("a", [1, 2, 3], max_tokens=9)
    first = scheduled(bench)
    scheduled(bench)
    with pytest.raises(ValueError, match="behind which a step runs already"):
        bench.scheduler.commit(first, [Drawn((5, 6))])


def test_work_that_is_left_is_not_discarded() -> None:
    bench = made()
    bench.add("a", [1, 2, 3], max_tokens=9)
    scheduled(bench)
    bench.scheduler.discard()
    bench.commit()
    scheduled(bench)
    bench.abort("a")
    bench.scheduler.discard()
    assert bench.scheduler.schedule() is None
    bench.check_empty()
