"""Prompts beside running decodes: as many tokens as the promised time per output token leaves room for."""

import statistics

import pytest

from anychip.engine.pace import Pace
from anychip.engine.scheduler import Scheduler
from support.schedules import Bench, config

LIMIT_S, DECODE_S, TOKEN_S = 0.050, 0.010, 0.001
CHUNK = 512


def measured(limit_s: float | None, chunk: int = CHUNK) -> Pace:
    pace = Pace(limit_s, chunk)
    pace.observe(1, 0, DECODE_S)
    pace.observe(0, 100, DECODE_S + 100 * TOKEN_S)
    return pace


def test_without_a_promise_steps_take_whole_chunks() -> None:
    assert measured(None).prompt_tokens(4) == CHUNK


def test_without_decodes_nobody_waits_and_the_chunk_is_whole() -> None:
    assert measured(LIMIT_S).prompt_tokens(0) == CHUNK


def test_before_anything_was_measured_the_chunk_is_whole() -> None:
    assert Pace(LIMIT_S, CHUNK).prompt_tokens(4) == CHUNK


def test_beside_decodes_a_step_fits_the_promise() -> None:
    tokens = measured(LIMIT_S).prompt_tokens(4)
    assert 0.7 * LIMIT_S < DECODE_S + tokens * TOKEN_S <= LIMIT_S


def test_the_chunk_is_the_most_whatever_the_device_can_do() -> None:
    assert measured(60.0).prompt_tokens(4) == CHUNK
    assert measured(0.001, chunk=8).prompt_tokens(4) == 8


def test_a_prompt_goes_on_where_decodes_alone_break_the_promise() -> None:
    assert measured(DECODE_S / 2).prompt_tokens(4) == Pace.LEAST


def test_a_device_that_becomes_slower_gets_fewer_tokens_at_once_and_more_again_in_time() -> None:
    pace = measured(LIMIT_S)
    before = pace.prompt_tokens(4)
    pace.observe(4, 30, DECODE_S + 30 * 2 * TOKEN_S)
    assert abs(pace.prompt_tokens(4) - before / 2) <= 1
    pace.observe(4, 30, DECODE_S + 30 * TOKEN_S)
    assert before / 2 < pace.prompt_tokens(4) < before
    for _ in range(40):
        pace.observe(4, 30, DECODE_S + 30 * TOKEN_S)
    assert abs(pace.prompt_tokens(4) - before) <= 1


def test_short_prompts_tell_nothing_about_the_time_of_a_token() -> None:
    pace = measured(LIMIT_S)
    before = pace.prompt_tokens(4)
    pace.observe(4, Pace.LEAST - 1, 10.0)
    assert pace.prompt_tokens(4) == before


def test_a_waiting_prompt_never_stalls_running_decodes_beyond_the_promise() -> None:
    """On a device whose steps last exactly as the model says, every step of the running requests is in time."""
    steps_s = steps_beside(measured(LIMIT_S), prompt=2000, token_s=TOKEN_S)
    assert max(steps_s) <= LIMIT_S
    assert sum(seconds > DECODE_S for seconds in steps_s) >= 2000 // CHUNK, "the long prompt ran beside decodes"


@pytest.mark.parametrize("token_s", [0.003, 0.006, 0.012])
def test_where_few_prompt_tokens_are_too_many_steps_without_any_keep_the_mean_in_time(token_s: float) -> None:
    steps_s = steps_beside(slow(token_s), prompt=200, token_s=token_s)
    busy_s = steps_s[5 : 1 + max(step for step, seconds in enumerate(steps_s) if seconds > DECODE_S)]
    assert max(busy_s) > LIMIT_S
    assert statistics.fmean(busy_s) <= 1.05 * LIMIT_S
    assert len(busy_s) <= 200 / Pace.LEAST * (1 + Pace.RESTS), "the prompt ended beside them"


def test_a_prompt_rests_no_longer_than_it_may() -> None:
    """One step took so long that no number of steps makes it good."""
    pace = slow(0.01)
    pace.observe(1, Pace.LEAST, 100.0)
    rests = 0
    while pace.prompt_tokens(1) == 0:
        pace.observe(1, 0, DECODE_S)
        rests += 1
    assert Pace.RESTS <= rests <= Pace.RESTS + 1  # the sums are rounded


def slow(token_s: float) -> Pace:
    """A pace that knows of a device on which even the fewest prompt tokens break the promise."""
    pace = Pace(LIMIT_S, CHUNK)
    pace.observe(1, 0, DECODE_S)
    pace.observe(0, Pace.LEAST, DECODE_S + Pace.LEAST * token_s)
    return pace


def steps_beside(pace: Pace, prompt: int, token_s: float) -> list[float]:
    """How long each step of three running requests lasts where a prompt arrives at the sixth."""
    settings = config(chunked_prefill_size=CHUNK, context_length=5000)
    bench = Bench(settings, 1500)
    bench.scheduler = Scheduler(settings, bench.pool, pace)
    for number in range(3):
        bench.add(str(number), [number, 1, 2], max_tokens=250)
    steps_s: list[float] = []
    for step in range(400):
        if step == 5:
            bench.add("long", [4] * prompt, max_tokens=3)
        batch = bench.step()
        if batch is None:
            break
        prompt_tokens = batch.tokens - batch.decode_rows
        seconds = DECODE_S + prompt_tokens * token_s
        pace.observe(batch.decode_rows, prompt_tokens, seconds)
        if batch.decode_rows:
            steps_s.append(seconds)
    bench.check_outputs()
    return steps_s
