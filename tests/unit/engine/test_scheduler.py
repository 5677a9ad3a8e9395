"""The step loop: chunks, mixed batches, stopping, forks, retraction, abort, and failure."""

import statistics
import time
from collections.abc import Callable

import pytest

from anychip.engine.request import GenerateRequest
from anychip.engine.scheduler import Scheduler
from anychip.engine.step_plan import Drawn
from anychip_sdk.errors import RequestInvalid
from anychip_sdk.state import StateGroup
from support.fake_pool import ENTRY, HISTORY, FakePool
from support.schedules import EOS, Bench, config


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("length", [3, 4, 5])
@pytest.mark.parametrize("max_tokens", [1, 200])
def test_one_short_prompt_with_chunks_of_four_loses_no_page(page_size: int, length: int, max_tokens: int) -> None:
    bench = Bench(config(chunked_prefill_size=4, page_size=page_size), 300)
    bench.add("a", [1, 2, 3, 4, 5][:length], max_tokens=max_tokens)
    bench.drain()
    bench.check_outputs()
    bench.check_empty()


def test_a_step_holds_all_decodes_and_chunks_up_to_the_budget() -> None:
    bench = Bench(config(chunked_prefill_size=6), 100)
    bench.add("a", [1, 2, 3], max_tokens=5)
    bench.step()
    bench.add("b", [4, 5], max_tokens=5)
    bench.add("c", [6, 7, 8, 9, 10, 1], max_tokens=5)
    batch = bench.step()
    assert batch is not None
    rows = [(row.sequence.id, row.start, row.count, row.samples) for row in batch.rows]
    assert rows == [("a", 3, 1, 1), ("b", 0, 2, 1), ("c", 0, 4, 0)]
    assert (batch.decode_rows, batch.tokens, batch.samples) == (1, 7, 2)
    batch = bench.step()
    assert batch is not None
    rows = [(row.sequence.id, row.start, row.count, row.samples) for row in batch.rows]
    assert rows == [("a", 4, 1, 1), ("b", 2, 1, 1), ("c", 4, 2, 1)]


@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("page_size", [1, 3, 16])
def test_outputs_are_the_same_for_every_chunk_size(page_size: int, prefix_cache: bool) -> None:
    for chunk in (1, 3, 7, 64):
        bench = Bench(
            config(chunked_prefill_size=chunk, page_size=page_size, prefix_cache=prefix_cache), 400 // page_size
        )
        for number in range(6):
            bench.add(str(number), [1, 2, 3] * 5 + [number] * number, max_tokens=9, seed=number)
        bench.drain()
        bench.check_outputs()
        bench.check_empty()


def test_no_work_is_no_batch() -> None:
    scheduler = Scheduler(config(), FakePool(4, 4))
    assert scheduler.schedule() is None
    assert not scheduler.has_work


def test_schedule_and_commit_alternate() -> None:
    bench = Bench(config(), 10)
    bench.add("a", [1], max_tokens=3)
    batch = bench.scheduler.schedule()
    assert batch is not None
    assert bench.scheduler.schedule() is None
    with pytest.raises(ValueError, match="expects 1 draws"):
        bench.scheduler.commit(batch, [Drawn((1,)), Drawn((2,))])
    bench.scheduler.commit(batch, [Drawn((1,))])
    with pytest.raises(ValueError, match="the batch that"):
        bench.scheduler.commit(batch, [Drawn((1,))])


def test_the_pool_must_have_the_configured_page_size() -> None:
    with pytest.raises(ValueError, match="page size is 2"):
        Scheduler(config(page_size=4), FakePool(4, 2))


# --- the end of a text


def finish(bench: Bench) -> tuple[list[int], str | None, int | None]:
    bench.drain()
    last = bench.last["a", 0]
    return bench.tokens["a", 0], last.finish_reason, last.stop_token_id


def test_the_ending_token_is_told_apart_and_counted() -> None:
    free = Bench(config(), 100)
    free.add("a", [1], max_tokens=8, seed=5)
    tokens, reason, _ = finish(free)
    assert (len(tokens), reason) == (8, "length")
    stop = tokens[4]
    at = tokens.index(stop)
    bench = Bench(config(), 100)
    bench.add("a", [1], max_tokens=8, seed=5, stop_token_ids=(stop,))
    assert finish(bench) == (tokens[:at], "stop", stop)
    assert bench.last["a", 0].completion_tokens == at + 1


def test_eos_ends_the_text_unless_ignored_or_too_early() -> None:
    seed = 0
    while True:  # a seed that meets EOS early
        bench = Bench(config(), 100)
        bench.add("a", [1], max_tokens=30, seed=seed)
        tokens, _, _ = finish(bench)
        if EOS in tokens[:-1] and EOS in tokens[tokens.index(EOS) + 1 :]:
            break
        seed += 1
    first = tokens.index(EOS)
    bench = Bench(config(), 100)
    bench.add("a", [1], max_tokens=30, seed=seed, ignore_eos=False)
    assert finish(bench) == (tokens[:first], "stop", EOS)
    second = tokens.index(EOS, first + 1)
    bench = Bench(config(), 100)
    bench.add("a", [1], max_tokens=30, seed=seed, ignore_eos=False, min_tokens=first + 1)
    assert finish(bench) == (tokens[:second], "stop", EOS)


def test_without_max_tokens_the_context_ends_the_text() -> None:
    bench = Bench(config(context_length=20), 100)
    bench.add("a", [1, 2, 3])
    tokens, reason, _ = finish(bench)
    assert (len(tokens), reason) == (17, "length")


def test_a_lone_sequence_that_fills_the_pool_ends_with_length() -> None:
    bench = Bench(config(page_size=4), 3)
    bench.add("a", [1, 2, 3])
    tokens, reason, _ = finish(bench)
    assert reason == "length"
    assert len(tokens) == 3 * 4 + 1 - 3  # the last token needs no slot
    bench.check_empty()


# --- the cache


def test_a_second_equal_prompt_is_a_hit_and_computes_its_last_token() -> None:
    bench = Bench(config(page_size=2), 100)
    prompt = [1, 2, 3, 4]
    bench.add("a", prompt, max_tokens=3)
    bench.drain()
    bench.add("b", prompt, max_tokens=3)
    batch = bench.step()
    assert batch is not None
    assert [(row.start, row.count) for row in batch.rows] == [(2, 2)]
    bench.drain()
    bench.check_outputs()
    assert bench.last["b", 0].cached_tokens == 2
    assert (bench.scheduler.stats().prompt_tokens, bench.scheduler.stats().cached_tokens) == (8, 2)


def test_the_output_is_cached_for_the_next_turn() -> None:
    bench = Bench(config(page_size=1), 100)
    bench.add("a", [1, 2], max_tokens=4)
    bench.drain()
    bench.add("b", [1, 2, *bench.tokens["a", 0], 5], max_tokens=1)
    bench.drain()
    assert bench.last["b", 0].cached_tokens == 5  # the last output token never went through the model


def test_namespaces_are_not_shared() -> None:
    bench = Bench(config(page_size=1), 100)
    for number, namespace in enumerate(["", "adapter=1:x;", "salt=1:x;"]):
        bench.add(str(number), [1, 2, 3], namespace=namespace, max_tokens=1)
        bench.drain()
        assert bench.last[str(number), 0].cached_tokens == 0


def test_flush_refuses_while_busy_and_empties_the_pool_when_idle() -> None:
    bench = Bench(config(), 10)
    bench.add("a", [1, 2, 3, 4, 5], max_tokens=2)
    bench.step()
    assert not bench.scheduler.flush_cache()
    bench.drain()
    assert bench.scheduler.stats().pages_evictable == 1
    bench.check_empty()


# --- exhaustion


def tight(prefix_cache: bool = True, page_size: int = 1) -> Bench:
    """Three requests that all begin, and of which not all can end together."""
    bench = Bench(config(page_size=page_size, prefix_cache=prefix_cache, chunked_prefill_size=7), 240 // page_size)
    for number in range(3):
        bench.add(str(number), [number] * 12, max_tokens=90, seed=number)
    return bench


@pytest.mark.parametrize("page_size", [1, 3, 16])
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_retracted_sequences_resume_with_the_same_output(page_size: int, prefix_cache: bool) -> None:
    bench = tight(prefix_cache, page_size)
    bench.drain()
    assert bench.scheduler.stats().retractions > 0
    bench.check_outputs()
    bench.check_empty()


def test_the_youngest_is_retracted_and_goes_to_the_front() -> None:
    bench = tight()
    bench.add("later", [9] * 30, max_tokens=120)
    while bench.scheduler.stats().retractions == 0:
        bench.step()
    waiting = list(bench.scheduler._waiting)
    assert [sequence.id for sequence in waiting] == ["2", "later"]


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_a_prompt_retracted_half_way_keeps_its_forks_and_what_it_computed(prefix_cache: bool) -> None:
    bench = Bench(config(page_size=1, chunked_prefill_size=2, prefix_cache=prefix_cache), 40)
    bench.be_hopeful()
    bench.add("a", [1] * 3, max_tokens=30)
    bench.add("b", [2] * 30, n=2, max_tokens=3)
    while bench.scheduler.stats().retractions == 0:
        bench.step()
    [waiting] = bench.scheduler._waiting
    assert (waiting.id, waiting.width, waiting.output_count) == ("b", 2, 0)
    assert bench.scheduler._tables.match(waiting).pages > 0 or not prefix_cache
    bench.drain()
    bench.check_outputs()
    assert bench.last["b", 1].cached_tokens == 0
    bench.check_empty()


def test_own_recompute_is_not_a_hit() -> None:
    bench = tight()
    bench.drain()
    assert all(event.cached_tokens == 0 for event in bench.last.values())
    assert bench.scheduler.stats().cached_tokens == 0
    assert bench.scheduler.stats().prompt_tokens == 36


def test_unused_prefixes_are_evicted_before_anyone_is_retracted() -> None:
    bench = Bench(config(page_size=1), 40)
    for number in range(6):
        bench.add(str(number), [number] * 20, max_tokens=10)
        bench.drain()
    stats = bench.scheduler.stats()
    assert stats.retractions == 0
    assert stats.pages_evicted > 0
    bench.check_outputs()


def test_admission_leaves_room_for_what_running_requests_may_need() -> None:
    bench = Bench(config(page_size=1), 100)
    bench.add("a", [1] * 20, max_tokens=40)
    bench.add("b", [2] * 20, max_tokens=40)
    batch = bench.step()
    assert batch is not None
    assert [row.sequence.id for row in batch.rows] == ["a"]  # both need 120 pages at the end
    bench.drain()
    assert bench.scheduler.stats().retractions == 0
    bench.check_outputs()


# --- forks


@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("length", [7, 8, 9])
def test_forks_compute_the_prompt_once_and_differ(length: int, prefix_cache: bool) -> None:
    bench = Bench(config(page_size=4, prefix_cache=prefix_cache), 100)
    bench.add("a", [1] * length, n=3, max_tokens=12)
    batch = bench.step()
    assert batch is not None
    assert (batch.tokens, batch.samples) == (length, 3)
    batch = bench.step()
    assert batch is not None
    assert len(batch.copies) == (0 if length == 8 else 2)
    bench.drain()
    bench.check_outputs()
    assert len({tuple(bench.tokens["a", index]) for index in range(3)}) == 3
    bench.check_empty()


def test_forks_are_retracted_one_by_one() -> None:
    bench = Bench(config(page_size=2), 14)
    bench.add("a", [1, 2, 3], n=3, max_tokens=16)
    bench.drain()
    assert bench.scheduler.stats().retractions > 0
    bench.check_outputs()
    bench.check_empty()


def test_forks_end_each_for_itself() -> None:
    bench = Bench(config(page_size=1), 100)
    bench.add("a", [1, 2, 3], n=3, max_tokens=1)
    bench.drain()
    bench.check_outputs()
    bench.check_empty()


def test_a_request_counts_n_rows() -> None:
    bench = Bench(config(max_running_requests=4), 100)
    bench.add("a", [1], n=3, max_tokens=3)
    bench.add("b", [2], n=2, max_tokens=3)
    bench.add("c", [3], max_tokens=3)
    batch = bench.step()
    assert batch is not None
    assert [row.sequence.id for row in batch.rows] == ["a"]
    bench.drain()
    bench.check_outputs()


# --- abort and failure


def wait(bench: Bench) -> None:
    assert bench.scheduler.stats().running == 0


def begin(bench: Bench) -> None:
    bench.step()


def go_on(bench: Bench) -> None:
    bench.step()
    bench.step()


def decode(bench: Bench) -> None:
    while ("a", 0) not in bench.tokens:
        bench.step()


@pytest.mark.parametrize("reach", [wait, begin, go_on, decode])
@pytest.mark.parametrize("in_flight", [False, True])
@pytest.mark.parametrize("n", [1, 3])
def test_an_abort_at_any_state_leaves_nothing_behind(reach: Callable[[Bench], None], in_flight: bool, n: int) -> None:
    bench = Bench(config(chunked_prefill_size=4, page_size=3), 100)
    bench.add("a", [1, 2] * 6, n=n, max_tokens=20)
    bench.add("b", [1, 2] * 6 + [5], max_tokens=5)
    reach(bench)
    if in_flight:
        bench.step(between=lambda: bench.abort("a"))
    else:
        events = bench.abort("a")
        assert [event.finish_reason for event in events] == ["abort"] * n
    bench.drain()
    bench.add("again", [1, 2] * 6, max_tokens=20)  # must not read what the aborted one left half done
    bench.drain()
    bench.check_outputs()
    assert bench.scheduler.stats().pages_protected == bench.scheduler.stats().pages_in_flight == 0
    bench.check_empty()


def test_a_retracted_request_can_be_aborted() -> None:
    bench = tight()
    while bench.scheduler.stats().retractions == 0:
        bench.step()
    bench.abort("2")
    assert bench.scheduler.stats().waiting == 0
    bench.drain()
    bench.check_outputs()
    bench.check_empty()


def test_an_abort_is_for_the_exact_id() -> None:
    bench = Bench(config(), 100)
    bench.add("req-1", [1], max_tokens=2)
    bench.add("req-10", [1], max_tokens=2)
    assert bench.abort("req") == []
    assert len(bench.abort("req-1")) == 1
    bench.drain()
    assert bench.last["req-10", 0].finish_reason == "length"
    assert bench.abort("req-10") == []


def test_an_id_can_be_used_again_once_it_is_done() -> None:
    bench = Bench(config(), 100)
    bench.add("a", [1], max_tokens=2)
    with pytest.raises(RequestInvalid, match="'a' is in use"):
        bench.scheduler.add(GenerateRequest("a", [1]))
    bench.scheduler.abort("a")
    bench.scheduler.add(GenerateRequest("a", [1]))


def test_a_failure_ends_everything_and_caches_nothing_in_doubt() -> None:
    bench = Bench(config(chunked_prefill_size=6, page_size=2), 100)
    bench.add("a", [1, 2, 3], n=2, max_tokens=9)
    bench.add("b", [4] * 20, max_tokens=9)
    bench.step()
    assert bench.scheduler.schedule() is not None
    events = bench.scheduler.fail_all("the device is gone")
    assert [(event.request_id, event.index, event.finish_reason) for event in events] == [
        ("a", 0, "error"),
        ("a", 1, "error"),
        ("b", 0, "error"),
    ]
    assert all(event.error == "the device is gone" for event in events)
    bench.scheduler.check_invariants()
    assert not bench.scheduler.has_work
    assert bench.scheduler.schedule() is None
    bench.check_empty()


def test_after_a_failed_step_no_snapshot_is_used_that_it_may_not_have_taken() -> None:
    bench = Bench(config(page_size=2), 100, slots=4)
    bench.add("a", [1, 2, 3, 4, 5], max_tokens=2)
    bench.step()  # the prompt's pages, behind which the next step takes a snapshot
    batch = bench.scheduler.schedule()
    assert batch is not None
    assert batch.state_ops
    bench.take(bench.scheduler.fail_all("the device is gone"))
    bench.scheduler.check_invariants()
    del bench.requests["a"]
    bench.add("b", [1, 2, 3, 4, 5], max_tokens=2)
    bench.drain()
    bench.check_outputs()
    bench.check_empty()


# --- models with slot states


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_states_of_retracted_sequences_come_back(prefix_cache: bool) -> None:
    bench = Bench(config(page_size=3, prefix_cache=prefix_cache, chunked_prefill_size=7), 80, slots=6)
    for number in range(3):
        bench.add(str(number), [number] * 12, max_tokens=90, seed=number)
    bench.drain()
    assert bench.scheduler.stats().retractions > 0
    bench.check_outputs()
    bench.check_empty()


def test_no_more_sequences_run_than_have_a_slot() -> None:
    bench = Bench(config(max_running_requests=8), 100, slots=3)
    with pytest.raises(RequestInvalid, match="at most 3 sequences run at once"):
        bench.add("wide", [1], n=4)
    for number in range(5):
        bench.add(str(number), [number] * 9, max_tokens=3)
    bench.add("forks", [5] * 9, n=3, max_tokens=3)
    bench.step()
    assert (bench.scheduler.stats().running, bench.scheduler.stats().waiting) == (3, 3)
    bench.drain()
    bench.check_outputs()
    bench.check_empty()


class SlotlessPool(FakePool):
    """Its groups need slots, and it has none."""

    @property
    def groups(self) -> tuple[StateGroup, ...]:
        return (ENTRY, HISTORY)


def test_a_pool_without_slots_is_refused_for_a_model_that_needs_them() -> None:
    with pytest.raises(ValueError, match="the pool has no slots"):
        Scheduler(config(), SlotlessPool(4, 4))


# --- numbers


def test_the_pages_of_the_statistics_add_up() -> None:
    bench = tight()
    while bench.step() is not None:
        s = bench.scheduler.stats()
        assert s.pages_free + s.pages_evictable + s.pages_protected + s.pages_in_flight == s.pages_total
    stats = bench.scheduler.stats()
    assert (stats.requests, stats.finished, stats.aborted, stats.running, stats.waiting) == (3, 3, 0, 0, 0)
    assert stats.completion_tokens == 270


def test_a_step_of_sixteen_decodes_costs_less_than_half_a_millisecond() -> None:
    bench = Bench(config(max_running_requests=16, page_size=16, context_length=10_000), 1000)
    for number in range(16):
        bench.add(str(number), [number % 11] * 500, max_tokens=400)
    scheduler, times = bench.scheduler, []
    for _ in range(400):
        begin_s = time.process_time()
        batch = scheduler.schedule()
        assert batch is not None
        scheduler.commit(batch, [Drawn((1,))] * batch.samples)
        if batch.decode_rows == 16:
            times.append(time.process_time() - begin_s)
    assert len(times) > 200
    assert statistics.median(times) < 0.5e-3
