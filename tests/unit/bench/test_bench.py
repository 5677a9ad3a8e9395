"""Whole benchmarks against a server of known latencies."""

import os

import pytest

from anychip.bench.bench import bench
from anychip.bench.prompts import DEFAULT_VOCAB
from anychip.bench.record import Slo
from anychip.bench.result import Level
from anychip.bench.sweep import LoadFailed, Sweep, is_stable
from anychip.bench.target import Target
from anychip.bench.wire import Api
from anychip.bench.workload import read
from anychip_sdk.errors import PreconditionFailed, UsageError
from support.fake_tokens import fake_tokens

WORKLOAD = read("version: 1\nname: w\nprompt: {own_tokens: 20}\noutput_tokens: 8\nrequests: {per_stream: 2}\n", "w")
ONE = (Level("closed", 1),)


class Recorder:
    def __init__(self):
        self.total, self.stages, self.finished = 0, [], 0

    def begin(self, requests):
        self.total = requests

    def enter(self, stage):
        self.stages.append(stage)

    def done(self):
        self.finished += 1


def sweep(levels=ONE, workload=WORKLOAD, **more):
    return Sweep(workload, levels, **{"repeats": 1, "is_warmed_up": False, **more})


def measure(url, wanted, api=Api.completions, recorder=None, slo=Slo()):
    return bench(Target("url", url, url, pid=os.getpid(), slo=slo), wanted, recorder or Recorder(), api)


@pytest.mark.parametrize("api", list(Api))
def test_measured_latencies_are_those_of_the_server(api):
    with fake_tokens(first_s=0.05, gap_s=0.01) as (url, _):
        (run,) = measure(url, sweep(), api).result.levels[0].runs
    assert run.failed == 0
    assert 0.05 <= run.ttft_s.min < 0.5
    assert 0.01 <= run.tpot_s.p50 < 0.2
    assert run.itl_s.count == 2 * 7
    assert run.output_tokens == 16
    assert run.prompt_tokens == 40
    assert run.output_tok_s <= 8 / (0.05 + 7 * 0.01)


def test_goodput_tells_a_server_that_keeps_its_promise_from_one_that_does_not():
    with fake_tokens(first_s=0.05) as (url, _):
        kept = measure(url, sweep(slo=Slo(ttft_s=5.0))).result.levels[0].figures
        broken = measure(url, sweep(slo=Slo(ttft_s=0.04))).result.levels[0].figures
    assert (kept.goodput_fraction.median, broken.goodput_fraction.median) == (1.0, 0.0)


def test_the_targets_objective_counts_where_none_is_given():
    with fake_tokens() as (url, _):
        found = measure(url, sweep(), slo=Slo(ttft_s=9.0)).result
    assert found.slo == Slo(ttft_s=9.0)
    assert found.levels[0].figures.goodput_fraction.median == 1.0


def test_every_round_runs_every_load_and_no_prompt_comes_twice():
    recorder = Recorder()
    with fake_tokens() as (url, server):
        result = measure(url, sweep((Level("closed", 1), Level("closed", 3)), repeats=2), recorder=recorder).result
    assert recorder.stages == [f"{n} at once, run {run} of 2" for run in (1, 2) for n in (1, 3)]
    assert recorder.total == recorder.finished == 2 * (2 + 6)
    assert [[run.requests for run in level.runs] for level in result.levels] == [[2, 2], [6, 6]]
    assert len({tuple(prompt) for prompt in server.prompts}) == 16
    assert max(max(prompt) for prompt in server.prompts) < 500 < DEFAULT_VOCAB


def test_the_load_is_as_concurrent_as_asked_for():
    with fake_tokens(first_s=0.03) as (url, server):
        measure(url, sweep((Level("closed", 4),)))
    assert server.most_running == 4


def test_poisson_requests_come_at_the_asked_rate_however_long_they_take():
    with fake_tokens(first_s=0.3) as (url, server):
        (run,) = measure(url, sweep((Level("poisson", 100.0),), requests=10)).result.levels[0].runs
    assert run.requests == 10
    assert server.most_running >= 8
    assert run.ttft_s.min >= 0.3


def test_the_hit_rate_is_the_one_of_this_run():
    with fake_tokens(cached=5) as (url, _):
        (run, again) = measure(url, sweep(repeats=2)).result.levels[0].runs
    assert run.cache_hit_rate == again.cache_hit_rate == pytest.approx(5 / 20)
    assert run.cached_fraction == pytest.approx(5 / 20)


def test_the_warm_up_ends_when_speed_is_stable():
    recorder = Recorder()
    with fake_tokens(first_s=0.02) as (url, server):
        found = measure(url, sweep(is_warmed_up=True), recorder=recorder).result.warm_up
    assert 3 <= len(found.windows_tok_s) <= 10
    assert found.is_stable == is_stable(found.windows_tok_s)
    assert recorder.finished == 2  # the warm-up doesn't count
    assert len(server.prompts[0]) == 64


@pytest.mark.parametrize(
    ("rates", "stable"),
    [([10, 10], False), ([10, 10, 10], True), ([10, 10, 12], False), ([1, 10, 10.5, 10.9], True), ([], False)],
)
def test_speed_is_stable_when_the_last_three_windows_are_alike(rates, stable):
    assert is_stable(rates) is stable


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"short_prompts": None}, "8 output tokens were asked for, 7 came"),
        ({"error_at": 3}, "the engine died"),
        ({"status": 429}, "answered 429"),
    ],
)
def test_a_run_that_fails_altogether_is_an_error(options, error):
    with fake_tokens(**options) as (url, _), pytest.raises(LoadFailed, match=error):
        measure(url, sweep())


def test_a_workload_longer_than_the_context_is_refused_before_anything_is_sent():
    with fake_tokens(context=27) as (url, server):
        with pytest.raises(UsageError, match="up to 28 tokens, the context of fake is 27"):
            measure(url, sweep())
        assert server.bodies == []


def test_nobody_there_is_said():
    with pytest.raises(PreconditionFailed, match="does not answer"):
        measure("http://127.0.0.1:9", sweep())


def test_texts_are_tokenized_by_the_service():
    text = "{own_tokens: 12, texts: {sentences: ['abc '], tail: end}}"
    wanted = read(f"version: 1\nname: w\nprompt: {text}\noutput_tokens: 2\n", "w")
    with fake_tokens() as (url, server):
        measure(url, sweep(workload=wanted))
    assert bytes(server.prompts[0]) == b"abc abc aend"


def test_the_result_tells_what_was_measured_where():
    with fake_tokens() as (url, _):
        found = measure(url, sweep()).result
    assert (found.target.model, found.target.url, found.workload.digest) == ("fake", url, WORKLOAD.digest)
    assert found.service["backend"] == {"name": "fake"}
    assert found.is_valid
    assert found.peak_rss_bytes > 10 * 2**20  # the server is a thread of this process
    assert {"cpu", "cores_allowed", "memory_bytes", "transparent_huge_pages", "packages"} <= set(found.environment)
    assert {"torch", "anychip", "anychip-sdk"} <= set(found.environment["packages"])
