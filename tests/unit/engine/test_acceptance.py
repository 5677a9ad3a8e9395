"""How many of a runner's tokens a sequence takes: several at once, up to the one that ends it."""

import pytest

from anychip.engine.request import GenerateRequest, LogProb, SamplingParams
from anychip.engine.scheduler import Scheduler
from anychip.engine.step_plan import Drawn
from support.fake_pool import FakePool
from support.schedules import EOS, Bench, config


@pytest.mark.parametrize("ahead", [2, 3, 5])
@pytest.mark.parametrize(("pages", "page_size"), [(200, 4), (13, 4), (40, 1), (5, 16)])
def test_a_runner_that_draws_several_tokens_changes_no_output(ahead: int, pages: int, page_size: int) -> None:
    bench = Bench(config(page_size=page_size, eos_token_ids=(EOS,)), pages, ahead)
    bench.be_hopeful()
    bench.add("a", [1, 2, 3], max_tokens=10)
    bench.add("b", [1, 2, 3, 4, 5], max_tokens=7, ignore_eos=False)
    bench.add("c", [7], max_tokens=20, n=3, stop_token_ids=(8, 9), min_tokens=4)
    bench.add("d", [2, 2], max_tokens=1)
    bench.drain()
    bench.check_outputs()
    bench.check_empty()


def test_several_tokens_take_fewer_steps_and_come_in_one_event() -> None:
    steps = {}
    for ahead in (1, 2):
        bench = Bench(config(page_size=16), 10, ahead)
        bench.add("a", [1], max_tokens=10)
        steps[ahead] = bench.drain()
    assert steps == {1: 10, 2: 5}


def test_tokens_behind_the_one_that_ends_the_text_are_dropped() -> None:
    scheduler = Scheduler(config(page_size=16), FakePool(1000, 16))
    for name, params in (
        ("limit", SamplingParams(max_tokens=2, ignore_eos=True)),
        ("stop", SamplingParams(stop_token_ids=(8,), ignore_eos=True)),
        ("goes on", SamplingParams(ignore_eos=True)),
    ):
        scheduler.add(GenerateRequest(name, [1], params))
    batch = scheduler.schedule()
    assert batch is not None
    likely = tuple(LogProb(-float(place)) for place in range(4))
    events = {event.request_id: event for event in scheduler.commit(batch, [Drawn((5, 6, 8, 7), likely)] * 3)}
    assert (events["limit"].token_ids, events["limit"].finish_reason) == ([5, 6], "length")
    assert (events["limit"].completion_tokens, events["limit"].logprobs) == (2, likely[:2])
    assert (events["stop"].token_ids, events["stop"].stop_token_id, events["stop"].finish_reason) == ([5, 6], 8, "stop")
    assert (events["stop"].completion_tokens, events["stop"].logprobs) == (3, likely[:2])
    assert (events["goes on"].token_ids, events["goes on"].finish_reason) == ([5, 6, 8, 7], None)
    assert events["goes on"].logprobs == likely
    scheduler.check_invariants()
    following = scheduler.schedule()
    assert following is not None
    assert [(row.start, row.count) for row in following.rows] == [(4, 1)]


def test_a_runner_draws_no_more_tokens_than_the_pages_hold() -> None:
    scheduler = Scheduler(config(page_size=4), FakePool(10, 4))
    scheduler.add(GenerateRequest("a", [1], SamplingParams()))
    batch = scheduler.schedule()
    assert batch is not None
    with pytest.raises(ValueError, match=r"drew 5 tokens at once .* 1 to 4 are expected"):
        scheduler.commit(batch, [Drawn((1,) * 5)])
