"""Each mutant is killed by the requirements that it names, the healthy chip passes them. Knows a quick part by name."""

from dataclasses import replace

import pytest
import torch

from anychip_sdk.conformance import command, selftest
from anychip_sdk.conformance.certify.certificate import KillScore
from anychip_sdk.conformance.mutants import MUTANTS, Mutant, healthy_claims, load_mutants, mutant
from anychip_sdk.conformance.mutants.judging import Unit, judge
from anychip_sdk.conformance.reference import ReferenceLoader
from anychip_sdk.conformance.requirements import REQUIREMENTS, TRACKS
from anychip_sdk.conformance.run.runner import run_in_process
from anychip_sdk.conformance.selftest import Row, SelfTest, unkilled
from anychip_sdk.conformance.trial import oracle
from anychip_sdk.errors import UsageError
from anychip_sdk.ops import CATALOGUE
from anychip_sdk.testing.check import Comparison

#: one or more of each track, module and kind, each in a fraction of a second
QUICK = (
    "alignment_is_ignored",
    "exhaustion_is_untyped",
    "tail_is_not_copied",
    "add_skips_the_tail",
    "bans_are_finite",
    "rope_turns_64_dimensions",
    "kv_write_swaps_keys_and_values",
    "sample_multiplies_by_the_temperature",
    "rms_norm_depends_on_its_address",
    "linear_splits_by_batch",
    "claims_a_dtype_that_it_lacks",
    "serves_what_it_does_not_claim",
    "prepared_weights_are_transposed",
    "copies_forget_values",
    "caches_move",
    "double_free_is_accepted",
    "streams_run_out",
    "nibbles_are_neighbours",
    "activations_are_truncated",
    "scales_are_the_next_rows",
    "fusion_finds_its_own_result",
    "aborted_pages_stay",
)

#: one or more of each track
HEALTHY = (
    "AC-DEVICE-020",
    "AC-MEMORY-003",
    "AC-COPY-001",
    "AC-STREAM-005",
    "AC-OP-006",
    "AC-OP-014",
    "AC-KV-013",
    "AC-GRAPH-007",
    "AC-E2E-011",
)
#: one of each track
SLICE = (
    "claims_a_dtype_that_it_lacks",
    "alignment_is_ignored",
    "tail_is_not_copied",
    "streams_run_out",
    "argmax_sees_one_block",
    "double_free_is_accepted",
    "fusion_finds_its_own_result",
    "aborted_pages_stay",
)


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def judged(unit: Unit):
    found = judge(unit)
    assert found.error == ""
    return found


@pytest.mark.parametrize("name", QUICK)
def test_a_mutant_is_killed_by_every_requirement_that_it_names(name):
    found = judged(Unit(mutant=name))
    assert set(found.found) == set(load_mutants()[name].kills)
    assert found.accidents == {}


@pytest.mark.parametrize("key", HEALTHY)
def test_the_healthy_chip_passes_with_something_to_say(key):
    found = judged(Unit(requirement=key))
    assert found.found == {}
    assert found.cases[key] > 0


def test_there_are_many_mutants_and_every_must_has_one():
    mutants = load_mutants()
    assert len(mutants) >= 45
    assert unkilled() == ()
    assert all(one.fault.endswith(".") and one.kills for one in mutants.values())
    assert {key for one in mutants.values() for key in one.kills} <= set(REQUIREMENTS)


def test_every_op_of_the_catalogue_has_a_mutant():
    broken = {one.op for one in load_mutants().values()}
    assert set(CATALOGUE) <= broken


def test_a_must_without_a_mutant_is_vacuous():
    key = "AC-KV-009"
    known = {one for mutated in load_mutants().values() for one in mutated.kills}
    assert unkilled(known - {key}) == (key,)


def test_a_comparison_that_says_yes_lets_mutants_live(monkeypatch):
    monkeypatch.setattr(oracle, "compare", lambda *_: Comparison(0.0, "out", 0.0, 0.0))
    assert judged(Unit(mutant="linear_sums_in_half")).found == {}


def test_other_requirements_that_find_a_mutant_are_listed_and_counted():
    found = judged(Unit(mutant="kv_write_swaps_keys_and_values", beside=True))
    assert "AC-OP-002" in found.found
    assert not set(found.found) & {"AC-OP-001", "AC-KV-007"}  # these name it
    row = Row("one", "Wrong.", ("AC-OP-001",), (), "off", tuple(found.found))
    said = SelfTest((row, replace(row, collateral=()), replace(row, collateral=None)))
    assert f"1 of them fail {len(found.found)} other requirements as well" in said.text()
    assert said.to_json()["matrix"][0]["collateral"] == tuple(found.found)


def test_what_survives_fails_the_selftest():
    killed = Row("one", "Wrong.", ("AC-OP-001",), (), "AC-OP-001[x]: off")
    alive = Row("other", "Wrong.", ("AC-OP-002",), ("AC-OP-002",), "AC-OP-002 passed 3 cases")
    found = SelfTest((killed, alive))
    assert not found.passed
    assert found.score == KillScore(1, 2)
    assert "SURVIVED other" in found.text()
    assert found.to_json()["matrix"][1]["killed"] is False
    assert SelfTest((killed,)).passed
    assert not SelfTest((killed,), healthy={"AC-OP-001": "off"}).passed
    assert not SelfTest((killed,), vacuous=("no mutant is declared for AC-OP-003",)).passed


def test_a_mutant_is_named_by_its_function_and_its_docstring():
    def add_does_nothing(x, y):
        """Nothing is added."""
        return x

    try:
        mutant("AC-OP-001", op="add")(add_does_nothing)
        made = MUTANTS.pop("add_does_nothing")
    finally:
        MUTANTS.pop("add_does_nothing", None)
    assert isinstance(made, Mutant)
    assert (made.kills, made.fault, made.op) == (("AC-OP-001",), "Nothing is added.", "add")


@pytest.mark.slow
def test_the_command_judges_some_in_processes_of_their_own():
    lines = []
    answer = command.self_test(SLICE, lines.append)
    assert answer.code == 0, answer.text
    assert answer.value["killed"] == answer.value["mutants"] == len(SLICE)
    assert {row["kills"][0].split("-")[1].lower() for row in answer.value["matrix"]} == set(TRACKS)
    assert any("killed   argmax_sees_one_block" in line for line in lines)
    assert any("passed   healthy, AC-OP-001" in line for line in lines)


def test_a_unit_that_takes_too_long_survives(monkeypatch):
    monkeypatch.setattr(selftest, "LIMIT_S", 0.0)
    found = selftest.selftest(["argmax_sees_one_block"], processes=1)
    assert not found.passed
    assert "gave no answer within 0 s" in found.rows[0].how


def test_a_name_that_no_mutant_has_is_refused():
    with pytest.raises(UsageError, match="no mutant is named by nobody"):
        selftest.selftest(["nobody"])


def test_claims_decide_what_is_run():
    one = load_mutants()["linear_splits_by_batch"]
    assert not replace(one.claims, capabilities={}).holds("batch_invariant")
    assert one.claims.holds("batch_invariant")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_transposed_page_layout_fails_in_the_kv_track_and_nowhere_else():
    claims = load_mutants()["pages_of32_are_transposed"].claims
    claims = replace(claims, capabilities={**claims.capabilities, "serving": True}, fusions=healthy_claims().fusions)
    results = run_in_process(ReferenceLoader("pages_of32_are_transposed"), claims, profile="serving-full")
    failed = {case.id: case.message for case in results.cases if case.status == "failed"}
    assert {case.partition("-")[2].partition("-")[0] for case in failed} == {"KV"}, failed
    assert "AC-KV-007[page-size-32]" in failed


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_mutant_is_killed_and_the_healthy_chip_fails_nothing():
    found = selftest.selftest()
    assert found.passed, found.text()
