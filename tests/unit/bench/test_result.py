"""The result's document keeps its form; a table and a plot are made of it."""

import builtins
import json

import msgspec
import pytest

from anychip.bench.plot import plot, require_plotting
from anychip.bench.record import Record, Slo
from anychip.bench.report import HEADERS, lines, milliseconds, rows
from anychip.bench.result import BenchResult, Level, LevelResult, TargetFacts, WarmUp, WorkloadFacts, from_json
from anychip.bench.summary import figures, summarize
from anychip.bench.workload import load
from anychip_sdk.errors import IntegrityFailed, PreconditionFailed, UsageError

DISTRIBUTION = {"count", "mean", "min", "p50", "p90", "p95", "p99", "max"}
RUN = {"requests", "failed", "wall_s", "prompt_tokens", "output_tokens", "output_tok_s", "total_tok_s"}
RUN |= {"requests_per_s", "ttft_s", "tpot_s", "itl_s", "e2e_s", "ttft_first_wave_s", "ttft_later_s"}
RUN |= {"tokens_per_event", "cached_fraction", "cache_hit_rate", "goodput"}
FIGURES = {"output_tok_s", "total_tok_s", "requests_per_s", "ttft_p50_s", "ttft_min_s", "ttft_max_s"}
FIGURES |= {"ttft_first_wave_s", "ttft_later_s", "tpot_p50_s", "itl_p50_s", "itl_p99_s", "e2e_p50_s"}
FIGURES |= {"cache_hit_rate", "goodput_requests_per_s", "goodput_fraction"}
RESULT = {"is_valid", "failures", "target", "workload", "seed", "slo", "warm_up", "levels", "peak_rss_bytes"}
RESULT |= {"service", "environment", "began_at", "wall_s", "definitions_version"}


def make_result(workload="w3", streams=(1, 4)):
    def run(count, repeat):
        start = [0.1 + 0.01 * repeat + 0.02 * index for index in range(count)]
        records = [
            Record(scheduled_s=0.0, sent_s=0.0, event_s=(at, at + 0.03, at + 0.07), prompt_tokens=9, output_tokens=3)
            for at in start
        ]
        return summarize(records, max(1, count // 2), Slo(ttft_s=0.145, tpot_s=1.0), 0.25)

    levels = []
    for count in streams:
        runs = tuple(run(count, repeat) for repeat in range(3))
        levels.append(LevelResult(Level("closed", float(count)), figures(runs), runs))
    return BenchResult(
        is_valid=True,
        failures=(),
        target=TargetFacts("url", "http://h:1", "http://h:1", "tiny", "completions", None),
        workload=WorkloadFacts.of(load(workload)),
        seed=0,
        slo=Slo(ttft_s=0.145, tpot_s=1.0),
        warm_up=WarmUp((1.0, 1.0, 1.0), True),
        levels=tuple(levels),
        peak_rss_bytes=3 * 2**30,
        service={},
        environment={"cpu": "a processor", "cores_allowed": 2, "load_average": [0.5, 0.0, 0.0]},
        began_at="2026-01-01T00:00:00+00:00",
        wall_s=1.0,
    )


def test_the_documents_form_is_stable():
    document = make_result().to_json()
    assert set(document) == RESULT
    (level, _) = document["levels"]
    assert set(level) == {"level", "figures", "runs"}
    assert level["level"] == {"kind": "closed", "value": 1.0}
    assert set(level["figures"]) == FIGURES
    assert set(level["figures"]["output_tok_s"]) == {"median", "min", "max"}
    assert set(level["runs"][0]) == RUN
    assert set(level["runs"][0]["ttft_s"]) == DISTRIBUTION
    assert set(level["runs"][0]["goodput"]) == {"requests_per_s", "fraction"}
    assert set(document["target"]) == {"kind", "name", "url", "model", "api", "recipe_digest"}
    assert set(document["workload"]) == {"name", "digest", "content"}
    assert document["definitions_version"] == 1


def test_the_document_is_read_again():
    result = make_result()
    assert from_json(json.dumps(result.to_json()), "x.json") == result


@pytest.mark.parametrize(
    ("text", "error"),
    [("{}", "x.json is no result of platform bench"), ("[", "is no result"), (None, "definitions version 7")],
)
def test_another_document_is_refused(text, error):
    if text is None:
        text = json.dumps({**make_result().to_json(), "definitions_version": 7})
    with pytest.raises(IntegrityFailed, match=error):
        from_json(text, "x.json")


def test_texts_of_a_workload_stay_out_of_the_document():
    assert "texts" not in make_result("chat").workload.content["prompt"]


def test_the_table_shows_medians_and_spreads():
    row = dict(zip(HEADERS, rows(make_result(streams=(4,)))[0], strict=True))
    assert row["LOAD"] == "4 at once"
    assert row["REQUESTS"] == "12"
    assert row["OUT TOK/S"] == "50.0 (48.0 to 52.2)"
    assert (row["TTFT P50"], row["TTFT RANGE"]) == ("140 ms", "100 ms to 180 ms")
    assert (row["TPOT P50"], row["ITL P99"]) == ("35 ms", "-")
    assert (row["HITS"], row["GOODPUT"]) == ("25%", "50%")


def test_the_lines_around_it_name_the_machine_and_what_the_prefix_was_worth():
    said = "\n".join(lines(make_result()))
    assert "a processor, 2 cores, load 0.5" in said
    assert "3 windows, then stable" in said
    assert "peak memory  3.00 GiB" in said
    assert "TTFT at most 145 ms, TPOT at most 1.00 s" in said
    assert "4 at once: TTFT p50 of the first wave 120 ms, of all later requests 160 ms" in said
    assert "first wave" not in "\n".join(lines(make_result("w2")))


def test_figures_of_an_emulated_service_are_not_the_chips():
    result = msgspec.structs.replace(make_result(), service={"backend": {"name": "acme", "emulated": True}})
    assert "target       tiny on http://h:1, EMULATED: no figure here is the chip's" in lines(result)
    assert "EMULATED" not in "\n".join(lines(make_result()))


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0452, "45.2 ms"), (0.9994, "999 ms"), (0.9996, "1.00 s"), (70, "70.00 s")]
)
def test_times_are_short(seconds, text):
    assert milliseconds(seconds) == text


@pytest.mark.parametrize(("name", "head"), [("b.png", b"\x89PNG"), ("b.svg", b"<?xml")])
def test_a_plot_is_drawn(tmp_path, name, head):
    require_plotting(tmp_path / name)
    plot(make_result(), tmp_path / name)
    content = (tmp_path / name).read_bytes()
    assert content.startswith(head)
    assert len(content) > 5000


def test_a_plot_of_another_kind_or_nowhere_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"expected a name that ends in \.png or \.svg"):
        require_plotting(tmp_path / "b.gif")
    with pytest.raises(UsageError, match="there is no folder"):
        require_plotting(tmp_path / "none" / "b.png")


def test_a_plot_without_matplotlib_says_what_to_install(tmp_path, monkeypatch):
    really = builtins.__import__

    def absent(name, *more):
        if name.partition(".")[0] == "matplotlib":
            raise ImportError(name)
        return really(name, *more)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(PreconditionFailed, match=r"pip install 'anychip\[plot\]'"):
        require_plotting(tmp_path / "b.png")
