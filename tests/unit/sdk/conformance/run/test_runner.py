"""Runs go on behind crashes and hangs, lose nothing, and never turn a failure into a pass."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from anychip_sdk.conformance import command
from anychip_sdk.conformance.cases import plan_cases
from anychip_sdk.conformance.certify.verdict import verdict
from anychip_sdk.conformance.reference import ReferenceLoader, reference_claims
from anychip_sdk.conformance.run.attempt import Bench
from anychip_sdk.conformance.run.runner import STREAMED, Options, run, run_in_process
from anychip_sdk.errors import UsageError
from support.conformance_runs import OddLoader, odd_claims, odd_target

ONE = "AC-OP-001[silu-float32-ones]"
TWO = "AC-OP-001[silu-float32-tails]"
ONLY = (ONE, TWO)


def outcomes(results) -> dict[str, str]:
    return {case.id: case.outcome for case in results.cases}


def test_a_right_backend_passes_and_its_results_are_streamed(tmp_path):
    seen = []
    results = run(odd_target("right"), Options("kernel", only=ONLY), tmp_path, lambda *told: seen.append(told[1:]))
    assert outcomes(results) == dict.fromkeys((ONE, TWO), "passed")
    assert seen == [(1, 2), (2, 2)]
    lines = (tmp_path / STREAMED).read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines[1:]] == [ONE, TWO]
    assert verdict(results).kind == "partial"


@pytest.fixture(scope="module")
def ends(tmp_path_factory):
    """A run over a kernel that crashes, one that hangs, and one behind both that is right; and its folder."""
    folder = tmp_path_factory.mktemp("ends")
    only = tuple(f"AC-OP-001[{op}-float32-ones]" for op in ("gelu", "mul", "silu"))
    options = Options("kernel", only=only, timeout_s=4.0)
    return run(odd_target("ends", "gelu", "mul", "silu"), options, folder), options, folder


def test_a_crash_fails_its_case_and_the_rest_goes_on(ends):
    crashed, _, right = ends[0].cases
    assert (crashed.outcome, right.outcome) == ("failed", "passed")
    assert "was ended by SIGABRT during this case" in crashed.message
    assert f"run odd --only '{crashed.id}'" in crashed.replay


def test_a_hang_fails_its_case_and_says_where(ends):
    hung = ends[0].cases[1]
    assert hung.outcome == "failed"
    assert "gave no answer within 4 s" in hung.message
    assert "in hangs" in hung.message


def test_a_finished_run_is_taken_over_failures_included(ends, tmp_path):
    before, options, folder = ends
    again = run(odd_target("ends", "gelu", "mul", "silu"), replace(options, resume=folder), tmp_path)
    assert outcomes(again) == outcomes(before)
    assert [case.message for case in again.cases] == [case.message for case in before.cases]
    assert not (tmp_path / "logs/op.log").exists()
    assert again.identity == before.identity


def test_a_kernel_that_ends_the_process_fails_its_case(tmp_path):
    results = run(odd_target("leaves"), Options("kernel", only=(ONE,)), tmp_path)
    assert "ended with exit code 0 during this case" in results.cases[0].message


def test_a_run_of_something_else_is_not_taken_over(ends, tmp_path):
    _, options, folder = ends
    other = replace(odd_target("right"), digest="00")
    with pytest.raises(UsageError, match="plugin, claims changed since"):
        run(other, Options("kernel", only=(ONE,), resume=folder), tmp_path)
    with pytest.raises(UsageError, match="level changed since"):
        run(odd_target("ends", "gelu", "mul", "silu"), replace(options, level="std", resume=folder), tmp_path)
    with pytest.raises(UsageError, match="no run that could be resumed"):
        run(odd_target("right"), Options("kernel", only=(ONE,), resume=tmp_path / "none"), tmp_path)


def test_a_glob_that_names_nothing_is_an_error(tmp_path):
    with pytest.raises(UsageError, match="no requirement of profile bringup"):
        run(odd_target("right"), Options(only=("AC-NOTHING-*",)), tmp_path)


def test_a_backend_that_does_not_load_fails_every_case(tmp_path):
    results = run(odd_target("missing"), Options("kernel", only=(ONE, TWO)), tmp_path)
    assert set(outcomes(results).values()) == {"failed"}
    assert "no case can be run" in results.cases[0].message


def test_a_kernel_that_is_wrong_once_in_fifty_runs_is_reported():
    results = run_in_process(OddLoader("wrong_once"), odd_claims(), only=("AC-OP-*silu-float32*",))
    assert verdict(results).word == "NOT CONFORMANT"
    again = run_in_process(OddLoader("wrong_once"), odd_claims(), only=("AC-OP-*silu-float32*",))
    assert outcomes(again) == outcomes(results)


def test_repeating_never_makes_a_pass_of_a_failure():
    claims = odd_claims()
    bench = Bench.open(OddLoader("wrong_once"), claims, "smoke", repeat=100)
    [planned] = plan_cases(claims, "smoke", only=[ONE])
    attempt = bench.try_out(planned)
    assert attempt.outcome == "failed"
    assert attempt.message.startswith("run ")


def test_a_violation_leaves_its_evidence(tmp_path):
    claims = odd_claims()
    bench = Bench.open(OddLoader("wrong_once"), claims, "smoke", repeat=100, repro=tmp_path)
    [planned] = plan_cases(claims, "smoke", only=[ONE])
    attempt = bench.try_out(planned)
    kept = torch.load(Path(attempt.evidence), weights_only=True)
    assert {"x", "got", "expected", "bound"} <= set(kept)
    assert not torch.equal(kept["got"].double(), kept["expected"].double())


def test_a_claim_that_the_plugin_does_not_keep_is_a_violation():
    results = run_in_process(OddLoader("right"), odd_claims("silu", "rope"), only=["AC-DEVICE-020"])
    failed = [case for case in results.cases if case.outcome == "failed"]
    assert [case.id for case in failed] == ["AC-DEVICE-020[op-rope-float32]"]
    assert "registers no kernel for it" in failed[0].message


def test_a_kernel_that_is_not_claimed_is_a_warning():
    found = verdict(run_in_process(OddLoader("right"), odd_claims("rope"), only=["AC-DEVICE-021"]))
    assert not found.failures
    assert "silu float32" in found.warnings[0]


def test_a_dead_device_is_noticed():
    bench = Bench.open(OddLoader("right"), odd_claims(), "smoke")
    assert bench.canary() == ""
    bench.device.copy = lambda dst, src, stream=None: None
    assert "other values came back" in bench.canary()


def test_the_healthy_reference_chip_keeps_its_claims():
    results = run_in_process(ReferenceLoader(), reference_claims(), only=["AC-DEVICE-02*"])
    assert set(outcomes(results).values()) == {"passed"}


def test_the_command_says_what_failed_and_how_to_repeat_it(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "find_target", lambda name, claims, emulate: odd_target("leaves"))
    monkeypatch.setenv("ANYCHIP_HOME", str(tmp_path / "home"))
    answer = command.conduct("odd", Options("kernel", only=(ONE,)), out=tmp_path / "out")
    assert answer.code == 7
    assert answer.text.splitlines()[0].startswith("NOT CONFORMANT  (odd, kernel, smoke: 1 failed)")
    assert f"run odd --only '{ONE}' --profile kernel --level smoke" in answer.text
    assert not (tmp_path / "home").exists()
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"report.html", "junit.xml", "certificate.json"}
