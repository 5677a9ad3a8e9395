"""The comparison with other servers: ratios, shares of the machine's limit, and who is skipped why."""

import sys

import pytest

from support.sources import ROOT

MODULES = ("peers", "peer_kinds", "roofline")


@pytest.fixture
def peers(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import peers

    yield peers
    for name in MODULES:
        sys.modules.pop(name)


def test_above_one_ours_is_better_for_rates_and_for_times(peers, monkeypatch):
    values = {
        "anychip": {"rate": 30.0, "time": 0.5},
        "slow": {"rate": 10.0, "time": 4.0},
        "fast": {"rate": 20.0, "time": 1.0},
    }
    monkeypatch.setattr(
        peers.Cell, "value", lambda cell, results: results["rate" if cell.is_rate else "time"], raising=True
    )
    limit = {"W3 tok/s": 60.0, "W1 TTFT, s": 0.25}
    rows = {row["figure"]: row for row in peers.compare({name: [one] for name, one in values.items()}, [4], limit)}
    assert (rows["W3 tok/s"]["best_peer"], rows["W3 tok/s"]["ratio"]) == ("fast", 1.5)
    assert (rows["W1 TTFT, s"]["best_peer"], rows["W1 TTFT, s"]["ratio"]) == ("fast", 2.0)
    assert rows["W3 tok/s"]["of_limit"] == {"anychip": 0.5, "slow": pytest.approx(1 / 6), "fast": pytest.approx(1 / 3)}
    assert rows["W1 TTFT, s"]["of_limit"]["anychip"] == 0.5


def test_without_peers_there_is_no_ratio(peers, monkeypatch):
    monkeypatch.setattr(peers.Cell, "value", lambda cell, results: 1.0)
    assert {row["ratio"] for row in peers.compare({"anychip": [{}]}, [4], {})} == {None}


def test_a_step_reads_weights_once_and_the_keys_and_values_of_each_request(peers):
    machine = peers.roofline.Machine(bytes_per_s=100.0, flops_per_s=1e6)
    costs = peers.roofline.Costs(weight_bytes=1000, parameters=500, head_parameters=100, kv_bytes_per_token=2)
    assert peers.roofline.step_s(machine, costs, 1, 50) == pytest.approx((1000 + 100) / 100)
    assert peers.roofline.step_s(machine, costs, 4, 50) == pytest.approx((1000 + 400) / 100)
    slow = peers.roofline.Machine(bytes_per_s=1e9, flops_per_s=1000.0)
    assert peers.roofline.step_s(slow, costs, 4, 50) == pytest.approx(2 * 4 * 500 / 1000)
    assert peers.roofline.prefill_s(slow, costs, 10, 2) == pytest.approx(2 * (10 * 400 + 2 * 100) / 1000)


def test_a_peer_that_cannot_run_says_what_it_needs(peers, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    nothing = peers.Setting(None, None, None, (), 2)
    with pytest.raises(peers.Skipped, match="vllm is not installed"):
        peers.PEERS["vllm"](nothing)
    program = tmp_path / "bin" / "vllm"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    with pytest.raises(peers.Skipped, match="needs the model by --model"):
        peers.PEERS["vllm"](peers.Setting(None, "x.gguf", None, (tmp_path,), 2))
    found = peers.PEERS["vllm"](peers.Setting("/m", None, None, (tmp_path,), 2))
    assert found.command(81)[:5] == (str(program), "serve", "/m", "--port", "81")
