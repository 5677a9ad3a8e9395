"""Figures of timelines made by hand."""

import random

import pytest

from anychip.bench.record import Record, Slo
from anychip.bench.summary import Spread, distribution, figures, percentile, spread, summarize


def record(due=0.0, sent=None, events=(), tokens=None, prompt=10, **more):
    return Record(
        scheduled_s=due,
        sent_s=due if sent is None else sent,
        event_s=tuple(events),
        prompt_tokens=prompt,
        output_tokens=len(events) if tokens is None else tokens,
        **more,
    )


def test_latencies_count_from_the_time_when_a_request_was_due():
    late = record(due=1.0, sent=1.5, events=(2.0, 2.1, 2.4))
    assert late.ttft_s == pytest.approx(1.0)
    assert late.e2e_s == pytest.approx(1.4)


def test_the_time_per_output_token_leaves_the_first_one_out():
    assert record(events=(1.0, 1.2, 1.6)).tpot_s == pytest.approx(0.3)
    assert record(events=(1.0, 2.0), tokens=5).tpot_s == pytest.approx(0.25)
    assert record(events=(1.0,)).tpot_s is None


def test_gaps_are_between_consecutive_events():
    assert record(events=(1.0, 1.2, 1.6)).gaps_s == pytest.approx((0.2, 0.4))


def test_a_run_is_summed_up():
    run = summarize(
        [
            record(due=0.0, events=(1.0, 1.5, 2.0)),
            record(due=0.0, events=(2.0, 2.5, 3.0)),
            record(due=2.0, events=(2.5, 3.5, 4.0), cached_tokens=5),
        ],
        streams=2,
    )
    assert (run.requests, run.failed, run.wall_s, run.output_tokens, run.prompt_tokens) == (3, 0, 4.0, 9, 30)
    assert run.output_tok_s == pytest.approx(9 / 4)
    assert run.total_tok_s == pytest.approx(39 / 4)
    assert run.requests_per_s == pytest.approx(3 / 4)
    assert (run.ttft_s.min, run.ttft_s.p50, run.ttft_s.max) == (0.5, 1.0, 2.0)
    assert run.tpot_s.p50 == pytest.approx(0.5)
    assert run.itl_s.count == 6
    assert (run.itl_s.min, run.itl_s.max) == (0.5, 1.0)
    assert (run.ttft_first_wave_s, run.ttft_later_s) == (1.5, 0.5)
    assert run.tokens_per_event == 1.0
    assert run.cached_fraction == pytest.approx(5 / 30)
    assert run.goodput is None


def test_goodput_counts_requests_that_keep_to_both_limits():
    records = [
        record(events=(0.5, 0.6, 0.7)),  # keeps to both
        record(events=(0.5, 1.0, 1.5)),  # goes on too slowly
        record(events=(1.5, 1.6, 1.7)),  # starts too slowly
        record(events=(1.0, 1.1, 1.2)),  # is just in time
        record(events=(0.5,), error="the stream ended with an error"),
    ]
    run = summarize(records, 5, Slo(ttft_s=1.0, tpot_s=0.2))
    assert run.goodput.fraction == pytest.approx(2 / 5)
    assert run.goodput.requests_per_s == pytest.approx(2 / 1.7)
    assert summarize(records, 5, Slo(ttft_s=1.0)).goodput.fraction == pytest.approx(3 / 5)
    assert summarize(records, 5, Slo(tpot_s=0.2)).goodput.fraction == pytest.approx(3 / 5)


def test_a_failed_request_brings_no_tokens_and_no_latency():
    run = summarize([record(events=(1.0, 2.0)), record(events=(9.0, 9.5), error="no")], 2)
    assert (run.requests, run.failed, run.output_tokens) == (2, 1, 2)
    assert run.ttft_s.count == 1


def test_a_run_of_failures_has_no_distribution():
    run = summarize([record(error="no")], 1, Slo(ttft_s=1.0))
    assert (run.ttft_s, run.tpot_s, run.itl_s, run.tokens_per_event, run.output_tok_s) == (None, None, None, None, 0)
    assert run.goodput.fraction == 0


def test_percentiles_interpolate_between_neighbours():
    assert percentile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.5
    assert percentile([1.0, 2.0, 3.0, 4.0, 5.0], 0.9) == pytest.approx(4.6)
    assert percentile([7.0], 0.99) == 7.0


@pytest.mark.parametrize(("count", "told"), [(99, (0, 0, 0)), (100, (1, 0, 0)), (200, (1, 1, 0)), (1000, (1, 1, 1))])
def test_a_percentile_needs_ten_values_beyond_it(count, told):
    found = distribution(random.Random(0).sample(range(10_000), count))
    assert tuple(int(value is not None) for value in (found.p90, found.p95, found.p99)) == told


def test_figures_are_medians_over_runs_with_the_least_and_the_most():
    runs = [summarize([record(events=(1.0, 1.0 + gap))], 1) for gap in (0.5, 3.0, 1.0)]
    found = figures(runs)
    assert found.output_tok_s == Spread(1.0, 0.5, pytest.approx(2 / 1.5))
    assert found.tpot_p50_s == Spread(1.0, 0.5, 3.0)
    assert found.goodput_fraction is None


def test_a_figure_that_one_run_lacks_is_no_figure():
    assert spread([1.0, None]) is None
    assert spread([]) is None
