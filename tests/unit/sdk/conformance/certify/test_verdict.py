"""The verdict follows from results alone: failures, waivers, claims and gaps."""

from datetime import date, timedelta

import pytest

from anychip_sdk.conformance.certify.verdict import judged, verdict
from anychip_sdk.conformance.claims import Claims
from anychip_sdk.conformance.report.diff import difference
from support.conformance_runs import STARTED, case, made_up, waiver

FAILING = "AC-OP-001[linear-float32-wide]"
YESTERDAY = (date.fromisoformat(STARTED[:10]) - timedelta(days=1)).isoformat()


def test_a_run_without_failures_is_conformant():
    found = verdict(made_up())
    assert (found.word, found.failures, found.is_conformant) == ("CONFORMANT", (), True)


def test_a_violated_must_decides():
    found = verdict(made_up(case(FAILING, "failed", message="off by 3")))
    assert found.word == "NOT CONFORMANT"
    assert found.failures == (f"{FAILING}: off by 3",)


def test_a_violated_should_is_a_warning():
    found = verdict(made_up(case(FAILING, "failed", force="SHOULD")))
    assert found.word == "CONFORMANT"
    assert len(found.warnings) == 1


def test_what_is_not_claimed_or_falls_back_is_no_failure():
    assert verdict(made_up(case(FAILING, "not_claimed"), case("AC-OP-003", "passed_via_fallback"))).is_conformant


def test_a_waived_failure_is_said_in_the_verdict():
    results = made_up(case(FAILING, "failed"), waivers=[waiver(FAILING)])
    assert verdict(results).word == "CONFORMANT WITH 1 WAIVER"
    assert judged(results).counts()["waived"] == 1


def test_a_waiver_of_a_requirement_holds_while_one_case_fails():
    results = made_up(case(FAILING, "failed"), case("AC-OP-001[add-float32]"), waivers=[waiver("AC-OP-001")])
    assert verdict(results).kind == "conformant_with_waivers"


@pytest.mark.parametrize(
    ("cases", "waived", "why"),
    [
        ([case(FAILING, "failed")], waiver(FAILING, expires=YESTERDAY), "expired"),
        ([case(FAILING)], waiver(FAILING), "remove it"),
        ([], waiver("AC-OP-001[no-such]"), "matches no case"),
        ([case(FAILING, "not_claimed")], waiver(FAILING), "matches no case"),
        ([case(FAILING, "failed")], waiver(FAILING, versions="<1.0"), "is for versions"),
    ],
)
def test_waivers_are_strict(cases, waived, why):
    found = verdict(made_up(*cases, waivers=[waived]))
    assert found.word == "NOT CONFORMANT"
    assert why in found.failures[0]


def test_a_waiver_that_nothing_needs_is_one_failure_however_many_cases_it_names():
    cases = [case(f"AC-OP-001[{name}]") for name in ("add", "mul", "silu")]
    expired = waiver("AC-OP-001", expires=YESTERDAY)
    assert verdict(made_up(*cases, waivers=[expired])).failures == (f"waiver AC-OP-001: expired on {YESTERDAY}",)


def test_a_waiver_holds_on_its_last_day():
    assert verdict(made_up(case(FAILING, "failed"), waivers=[waiver(FAILING, expires=STARTED[:10])])).is_conformant


def test_a_waiver_does_not_cover_its_neighbours():
    results = made_up(case(FAILING, "failed"), case("AC-OP-0011", "failed"), waivers=[waiver("AC-OP-001")])
    assert verdict(results).failures == ("AC-OP-0011: failed",)


def test_a_limited_run_has_no_verdict_unless_something_fails():
    assert verdict(made_up(only=["op"])).word == "PARTIAL: no verdict"
    assert verdict(made_up(case(FAILING, "failed"), only=["op"])).word == "NOT CONFORMANT"


def test_an_absent_track_leaves_no_verdict():
    found = verdict(made_up(profile="kernel", absent={"e2e": "not installed"}))
    assert found.gaps == ("track e2e: not installed",)
    assert found.kind == "partial"


def test_a_requirement_that_was_not_run_leaves_no_verdict():
    assert verdict(made_up(), requirements={"AC-KV-001": None}).kind == "partial"


def test_a_claim_that_the_profile_needs_decides():
    found = verdict(made_up(claims=Claims("odd", ("float32",))))
    assert found.word == "NOT CONFORMANT"
    assert "needs the claim op:add:float32" in found.failures[0]


def test_a_difference_shows_what_got_worse_and_what_was_mended():
    old = made_up(case(FAILING), case("AC-OP-003", "failed"), case("AC-OP-004"), case("AC-OP-005"))
    new = made_up(case(FAILING, "failed"), case("AC-OP-003"), case("AC-OP-004", "passed_via_fallback"))
    found = difference(old, new)
    assert [change.id for change in found.regressions] == [FAILING, "AC-OP-004", "AC-OP-005"]
    assert [change.id for change in found.fixed] == ["AC-OP-003"]


def test_growing_errors_are_drift_and_no_regression():
    def with_error(value):
        return made_up(case(FAILING, op="linear", dtype="float32", measured={"headroom": value}))

    found = difference(with_error(0.1), with_error(0.4))
    assert [str(drift) for drift in found.drifts] == ["linear float32: 0.100 -> 0.400 of the bound"]
    assert not found.regressions
    assert not difference(with_error(0.001), with_error(0.04)).drifts
