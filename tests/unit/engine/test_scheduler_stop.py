"""Completions that end by what their reader knows, a stop string, while their siblings go on."""

import pytest

from support.schedules import Bench, config


@pytest.mark.parametrize("in_flight", [False, True])
@pytest.mark.parametrize("overlap", [False, True])
def test_a_completion_that_is_whole_leaves_the_step_and_its_siblings_go_on(in_flight: bool, overlap: bool) -> None:
    bench = Bench(config(chunked_prefill_size=64, page_size=3, overlap=overlap), 100)
    bench.add("a", [1, 2] * 6, n=3, max_tokens=20)
    while len(bench.tokens.get(("a", 1), [])) < 4:
        bench.step()
    if in_flight:
        bench.step(between=lambda: bench.stop("a", 1))
    else:
        bench.stop("a", 1)
    said = len(bench.tokens["a", 1])
    bench.stop("a", 1)
    bench.stop("other", 0)
    bench.drain()
    assert [bench.last["a", index].finish_reason for index in range(3)] == ["length", None, "length"]
    assert len(bench.tokens["a", 1]) == said
    bench.check_outputs()
    stats = bench.scheduler.stats()
    assert (stats.finished, stats.aborted) == (3, 0)
    assert stats.completion_tokens == sum(map(len, bench.tokens.values()))
    bench.check_empty()


def test_a_retracted_completion_can_be_whole_too() -> None:
    bench = Bench(config(page_size=1, chunked_prefill_size=7), 240)
    for number in range(3):
        bench.add(str(number), [number] * 12, max_tokens=90, seed=number)
    while bench.scheduler.stats().retractions == 0:
        bench.step()
    bench.stop("2", 0)
    bench.drain()
    bench.check_outputs()
    bench.check_empty()


def test_a_completion_that_has_said_nothing_is_not_whole() -> None:
    bench = Bench(config(), 100)
    bench.add("a", [1], n=2, max_tokens=3)
    bench.stop("a", 0)
    bench.drain()
    assert bench.last["a", 0].finish_reason == bench.last["a", 1].finish_reason == "length"
    bench.check_outputs()
