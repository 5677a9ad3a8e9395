"""The comparison with other servers: ratios, shares of the limit, who is run again, and who is skipped why."""

import contextlib
import itertools
import sys
from types import SimpleNamespace

import pytest

from anychip_sdk.errors import NotReady
from support.sources import ROOT
from support.tiny_models import make_tiny

MODULES = ("peers", "peer_kinds", "peer_report", "roofline")


@pytest.fixture
def peers(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import peers

    yield peers
    for name in MODULES:
        sys.modules.pop(name)


@pytest.fixture
def kinds(peers):
    return sys.modules["peer_kinds"]


@pytest.fixture
def report(peers):
    return sys.modules["peer_report"]


@pytest.fixture
def roofline(peers):
    return sys.modules["roofline"]


def result(streams=4, **figures):
    """A workload's result at so many streams with these figures' medians; the others are not there."""
    names = ("ttft_p50_s", "tpot_p50_s", "output_tok_s", "ttft_first_wave_s", "ttft_later_s")
    spreads = {name: SimpleNamespace(median=figures[name]) if name in figures else None for name in names}
    level = SimpleNamespace(level=SimpleNamespace(value=streams), figures=SimpleNamespace(**spreads))
    return SimpleNamespace(levels=[level], is_valid=True, failures=(), wall_s=1.0)


def test_above_one_ours_is_better_for_rates_and_for_times(report):
    sides = {
        "anychip": {"w3": [result(output_tok_s=30.0, ttft_later_s=0.5)]},
        "slow": {"w3": [result(output_tok_s=10.0, ttft_later_s=4.0)]},
        "fast": {"w3": [result(output_tok_s=20.0, ttft_later_s=1.0)]},
    }
    bounds = {name: {"W3 tok/s": [60.0], "W3 TTFT later, s": [0.25]} for name in sides}
    rows = {row.figure: row for row in report.compare(sides, report.cells(["w3"], [4]), bounds)}
    rate, time = rows["W3 tok/s"], rows["W3 TTFT later, s"]
    assert (rate.best_peer, rate.ratio) == ("fast", 1.5)
    assert (time.best_peer, time.ratio) == ("fast", 2.0)
    assert rate.of_limit == {"anychip": 0.5, "slow": pytest.approx(1 / 6), "fast": pytest.approx(1 / 3)}
    assert time.of_limit["anychip"] == 0.5
    assert rows["W3 TTFT first wave, s"].medians == {}


def test_a_figure_is_the_median_over_the_rounds_that_have_it(report):
    rounds = [result(output_tok_s=value) for value in (10.0, 50.0, 20.0)]
    (row,) = (
        row for row in report.compare({"peer": {"w2": rounds}}, report.cells(["w2"], [4])) if "tok/s" in row.figure
    )
    assert (row.medians, row.rounds) == ({"peer": 20.0}, {"peer": 3})


def test_a_share_is_of_what_the_machine_allowed_in_the_same_round(report):
    rounds = [result(output_tok_s=value) for value in (10.0, 50.0, 20.0)]
    bounds = {"peer": {"W2 4 at once, tok/s": [20.0, 50.0, 25.0]}}
    rows = report.compare({"peer": {"w2": rounds}}, report.cells(["w2"], [4]), bounds)
    assert rows[0].of_limit == {"peer": 0.8}


def test_an_even_ratio_gives_every_side_its_share_of_one_machine(report):
    """Ours had twice the memory's speed; on one machine it would be as fast as the peer but for its fewer bytes."""
    sides = {
        "anychip": {"w1": [result(1, tpot_p50_s=0.02)], "w3": [result(output_tok_s=30.0)]},
        "peer": {"w1": [result(1, tpot_p50_s=0.04)], "w3": [result(output_tok_s=15.0)]},
    }
    token, rate = "W1 time per token, s", "W3 tok/s"
    bounds = {"anychip": {token: [0.01], rate: [60.0]}, "peer": {token: [0.02], rate: [30.0]}}
    even = {"anychip": {token: 0.015, rate: 40.0}, "peer": {token: 0.02, rate: 30.0}}
    rows = {row.figure: row for row in report.compare(sides, report.cells(["w1", "w3"], [4]), bounds, even)}
    assert (rows[token].ratio, rows[rate].ratio) == (2.0, 2.0)
    assert rows[token].even_ratio == pytest.approx(4 / 3)
    assert rows[rate].even_ratio == pytest.approx(4 / 3)


def test_without_peers_there_is_no_ratio(report):
    rows = report.compare({"anychip": {"w3": [result(output_tok_s=1.0)]}}, report.cells(["w3"], [4]))
    assert {row.ratio for row in rows} == {None}


def test_a_peer_far_behind_in_every_figure_of_a_workload_contends_no_more(report):
    compared = report.cells(["w2", "w3"], [4])
    sides = {
        "anychip": {"w2": [result(output_tok_s=1.0)]},
        "fast": {"w2": [result(output_tok_s=100.0, ttft_p50_s=1.0)], "w3": [result(output_tok_s=9.0)]},
        "near": {"w2": [result(output_tok_s=50.0, ttft_p50_s=1.2)]},
        "far": {"w2": [result(output_tok_s=50.0, ttft_p50_s=2.0)]},
    }
    again = [name for name in sides if report.contends(name, "w2", sides, compared, 1.25)]
    assert again == ["anychip", "fast", "near"]
    assert report.contends("far", "w3", sides, compared, 1.25)  # not measured in it yet


def test_the_table_names_the_best_peer_and_shares(report):
    sides = {"anychip": {"w3": [result(output_tok_s=30.0)]}, "peer": {"w3": [result(output_tok_s=20.0)]}}
    bounds = {"anychip": {"W3 tok/s": [60.0]}}
    text = report.table(report.compare(sides, report.cells(["w3"], [4]), bounds), list(sides))
    assert "30.000 ( 50%)" in text
    assert "1.50 (peer)" in text


@pytest.fixture
def comparison(peers, report, roofline, monkeypatch):
    """Sides that count how often they start, measured by what the table says."""
    rates = {"anychip": 30.0, "near": 20.0, "far": 1.0, "slow": 19.0}
    started = []

    def side(name, *, stays_up=False, fails=False):
        @contextlib.contextmanager
        def start():
            started.append(name)
            if fails:
                raise NotReady(f"{name} ended with 1")
            yield name

        return peers.Side(name, start, stays_up)

    monkeypatch.setattr(roofline, "measure", lambda: roofline.Machine(1.0, 2.0, 3.0))
    speeds = itertools.count(10.0)
    monkeypatch.setattr(roofline, "read_bytes_per_s", lambda: next(speeds))
    monkeypatch.setattr(
        peers, "bench", lambda target, sweep, listener: SimpleNamespace(result=result(output_tok_s=rates[target]))
    )
    return peers.Comparison({"w3": (4,)}, report.cells(["w3"], [4]), within=1.25), side, started


def test_a_slow_starter_stays_up_and_a_far_one_is_not_run_again(comparison):
    done, side, started = comparison
    sides = [side("anychip"), side("near"), side("far"), side("slow", stays_up=True)]
    assert len(list(done.run(sides, 3))) == 3
    assert started == ["anychip", "near", "far", "slow", "anychip", "near", "anychip", "near"]
    assert {name: len(results["w3"]) for name, results in done.results.items()} == {
        "anychip": 3,
        "near": 3,
        "far": 1,
        "slow": 3,
    }
    assert len(done.machines) == 3
    assert [one.bytes_per_s for one in done.around["near"]["w3"]] == [12.5, 20.5, 26.5]


def test_a_side_that_fails_is_said_and_left_out(comparison, capsys):
    done, side, started = comparison
    list(done.run([side("anychip"), side("far", fails=True)], 2))
    assert started == ["anychip", "far", "anychip"]
    assert "far ended with 1" in capsys.readouterr().err
    assert set(done.results) == {"anychip"}


def test_what_full_rounds_measured_is_there_before_the_next_one_begins(comparison):
    done, side, _ = comparison
    rounds = done.run([side("anychip")], 2)
    next(rounds)
    assert len(done.results["anychip"]["w3"]) == 1
    rounds.close()


def test_a_step_reads_weights_once_and_the_keys_and_values_of_each_request(roofline):
    machine = roofline.Machine(bytes_per_s=100.0, flops_per_s=1e6, int8_ops_per_s=1e6)
    costs = roofline.Costs(weight_bytes=1000, parameters=500, head_parameters=100, kv_bytes_per_token=2)
    assert roofline.step_s(machine, costs, 1, 50) == pytest.approx((1000 + 100) / 100)
    assert roofline.step_s(machine, costs, 4, 50) == pytest.approx((1000 + 400) / 100)
    assert roofline.step_s(machine, costs, 4, 50, shared=30) == pytest.approx((1000 + 2 * (30 + 4 * 20)) / 100)
    slow = roofline.Machine(bytes_per_s=1e9, flops_per_s=1000.0, int8_ops_per_s=1e6)
    assert roofline.step_s(slow, costs, 4, 50) == pytest.approx(2 * 4 * 500 / 1000)
    assert roofline.prefill_s(slow, costs, 10, 2) == pytest.approx(2 * (10 * 400 + 2 * 100) / 1000)


def test_integer_weights_are_held_to_the_speed_of_integer_products(roofline):
    machine = roofline.Machine(bytes_per_s=1e9, flops_per_s=1000.0, int8_ops_per_s=2000.0)
    costs = roofline.Costs(1000, parameters=500, head_parameters=100, kv_bytes_per_token=2, is_integer=True)
    assert roofline.step_s(machine, costs, 4, 50) == pytest.approx(2 * 4 * 500 / 2000)


def test_costs_count_the_weights_as_they_are_held(peers, tmp_path):
    folder = make_tiny(tmp_path, "qwen3", max_position_embeddings=4096)

    def bytes_at(quantization):
        recipe = peers.our_recipe(str(folder), quantization, 1)
        return peers.costs_of(peers.make_plan(peers.Recipe.model_validate(recipe))).weight_bytes

    assert bytes_at("int8") < 0.75 * bytes_at("none")


def test_ours_is_held_to_the_bytes_that_its_weights_take(peers, report, roofline, comparison, tmp_path):
    done, *_ = comparison
    folder = make_tiny(tmp_path, "qwen3", max_position_embeddings=4096)
    plan = peers.make_plan(peers.Recipe.model_validate(peers.our_recipe(str(folder), "none", 1)))
    slow_memory = roofline.Machine(bytes_per_s=1.0, flops_per_s=1e9, int8_ops_per_s=1e9)
    done.around = {name: {"w3": [slow_memory]} for name in ("anychip", "peer")}
    done.results = {name: {"w3": [result(output_tok_s=1.0)]} for name in done.around}
    done.weight_bytes = 0.75 * plan.memory.weights
    bounds = peers.bounds_of(done, peers.costs_by_side(done, plan), [4])
    assert bounds["anychip"]["W3 tok/s"][0] > bounds["peer"]["W3 tok/s"][0]


def test_a_peer_that_cannot_run_says_what_it_needs(kinds, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    vllm = kinds.Wanted.read("vllm")
    with pytest.raises(kinds.Skipped, match="vllm is not installed"):
        kinds.find(vllm, kinds.Search(None, None, None, None, (), 2))
    program = tmp_path / "bin" / "vllm"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    with pytest.raises(kinds.Skipped, match="needs the model by --vllm or --model"):
        kinds.find(vllm, kinds.Search(None, "x.gguf", None, None, (tmp_path,), 2))
    found = kinds.find(vllm, kinds.Search("/m", None, None, None, (tmp_path,), 2))
    assert found.command(81)[:5] == (str(program), "serve", "/m", "--port", "81")


def test_options_after_a_name_are_handed_to_the_peer(kinds, tmp_path):
    program = tmp_path / "bin" / "llama-server"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    wanted = kinds.Wanted.read("llama.cpp/np=4,fa=off")
    command = kinds.find(wanted, kinds.Search(None, "x.gguf", None, None, (tmp_path,), 2)).command(81)
    assert command[command.index("-np") + 1] == "4"
    assert command[command.index("-fa") + 1] == "off"
    assert command.count("-np") == 1
    assert wanted.name == "llama.cpp/np=4,fa=off"


@pytest.mark.parametrize(("text", "message"), [("sglang", "no peer 'sglang'"), ("vllm/x", "expected NAME=VALUE")])
def test_a_side_that_makes_no_sense_is_refused(kinds, text, message):
    with pytest.raises(ValueError, match=message):
        kinds.Wanted.read(text)


def test_every_setting_worth_trying_can_be_read(kinds):
    assert set(kinds.TUNING) == set(kinds.PEERS)
    for kind, settings in kinds.TUNING.items():
        assert all(kinds.Wanted.read(f"{kind}/{one}").kind == kind for one in settings)
