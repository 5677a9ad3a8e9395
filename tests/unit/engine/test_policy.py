"""The order of admission: longest cached prefix, ageing, and waiting for a prefix that is being computed."""

import pytest

from anychip.engine.policy import LongestPrefixFirst
from support.schedules import Bench, config


def first_rows(bench: Bench) -> list[str]:
    batch = bench.step()
    assert batch is not None
    return [row.sequence.id for row in batch.rows]


def test_fcfs_admits_in_order_of_arrival() -> None:
    bench = Bench(config(policy="fcfs"), 100)
    for name in "abc":
        bench.add(name, [1, 2, 3], max_tokens=2)
    assert first_rows(bench) == ["a", "b", "c"]


def test_lpm_admits_the_longest_cached_prefix_first() -> None:
    bench = Bench(config(policy="lpm", max_running_requests=1, page_size=2), 100)
    bench.add("warm", [5, 5, 5, 5, 6, 6, 6], max_tokens=1)
    bench.drain()
    bench.add("none", [1, 2, 3, 4, 5], max_tokens=1)
    bench.add("half", [5, 5, 1, 1, 1], max_tokens=1)
    bench.add("most", [5, 5, 5, 5, 1], max_tokens=1)
    order = [first_rows(bench)[0] for _ in range(3)]
    assert order == ["most", "half", "none"]
    assert bench.last["most", 0].cached_tokens == 4


def test_lpm_without_a_cache_is_fcfs() -> None:
    bench = Bench(config(policy="lpm", prefix_cache=False), 100)
    for name in "abc":
        bench.add(name, [1, 2, 3], max_tokens=2)
    assert first_rows(bench) == ["a", "b", "c"]


def test_nobody_is_overtaken_more_often_than_patience() -> None:
    bench = Bench(config(policy="lpm", max_running_requests=1, page_size=1), 100)
    bench.add("warm", [5, 5, 5, 5], max_tokens=1)
    bench.drain()
    bench.add("poor", [1, 2, 3], max_tokens=1)
    steps = 0
    while ("poor", 0) not in bench.last:
        for _ in range(2):  # richer requests arrive faster than they are served
            bench.add(f"rich{steps}.{_}", [5, 5, 5, 1], max_tokens=1)
        bench.step()
        steps += 1
        assert steps < 50
    assert steps == LongestPrefixFirst.PATIENCE + 1
    bench.drain()
    bench.check_outputs()


def test_a_long_new_prefix_is_computed_by_one_only() -> None:
    settings = config(policy="lpm", chunked_prefill_size=8, page_size=4, shared_prefix_tokens=8)
    bench = Bench(settings, 100)
    prefix = [1, 2] * 8
    for number in range(3):
        bench.add(str(number), [*prefix, number, number], max_tokens=2)
    bench.add("other", [9, 9], max_tokens=2)
    bench.drain()
    bench.check_outputs()
    assert [bench.last[str(number), 0].cached_tokens for number in range(3)] == [0, 16, 16]
    assert bench.scheduler.stats().prompt_tokens == 3 * 18 + 2


@pytest.mark.parametrize("chunk", [512, 4096])
@pytest.mark.parametrize("late", [0, 1])
def test_a_prefix_of_requests_that_arrive_together_goes_through_the_model_once(chunk: int, late: int) -> None:
    """Four prompts of 1,024 common and 64 own tokens, all at once or one of them a step later."""
    settings = config(policy="lpm", chunked_prefill_size=chunk, page_size=16, context_length=2000)
    bench = Bench(settings, 400)
    prefix = [1, 2, 4, 5] * 256
    prompts = [[*prefix, *[6 + number] * 64] for number in range(4)]
    for number in range(4 - late):
        bench.add(str(number), prompts[number], max_tokens=1)
    batch = bench.step()
    for number in range(4 - late, 4):
        bench.add(str(number), prompts[number], max_tokens=1)
    computed = 0
    while batch is not None:
        computed += batch.tokens - batch.decode_rows
        batch = bench.step()
    assert computed == 1024 + 4 * 64
    bench.check_outputs()


def test_a_short_common_prefix_is_not_waited_for() -> None:
    settings = config(policy="lpm", chunked_prefill_size=64, page_size=4, shared_prefix_tokens=32)
    bench = Bench(settings, 100)
    for number in range(3):
        bench.add(str(number), [1, 2, 3, 4, number], max_tokens=2)
    assert len(first_rows(bench)) == 3


def test_waiters_go_on_when_the_one_they_wait_for_is_aborted() -> None:
    settings = config(policy="lpm", chunked_prefill_size=4, page_size=4, shared_prefix_tokens=8)
    bench = Bench(settings, 100)
    prefix = [1, 2] * 8
    bench.add("a", [*prefix, 3], max_tokens=2)
    bench.add("b", [*prefix, 4], max_tokens=2)
    bench.step()
    bench.abort("a")
    bench.drain()
    bench.check_outputs()
    assert bench.last["b", 0].cached_tokens == 4
