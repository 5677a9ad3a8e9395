"""The coverage gate: nothing without a requirement or an exemption, nothing named that does not exist."""

from dataclasses import replace

from anychip_sdk.conformance.coverage import EXEMPT, gaps, inventory
from anychip_sdk.conformance.requirements import REQUIREMENTS, Requirements
from anychip_sdk.ops import CATALOGUE


def with_covers(*covers: str) -> Requirements:
    """All requirements, one of which covers something more."""
    found = Requirements()
    for rule in REQUIREMENTS.values():
        found.add(replace(rule, covers=(*rule.covers, *covers)) if rule.id == "AC-OP-001" else rule)
    return found


def test_everything_is_covered_or_exempt():
    assert gaps() == ()


def test_a_new_hook_needs_a_requirement():
    known = inventory()
    assert gaps(replace(known, hooks=(*known.hooks, "anychip_dance"))) == (
        "hook:anychip_dance has no requirement and no exemption",
    )


def test_a_new_capability_needs_a_requirement():
    known = inventory()
    assert gaps(replace(known, capabilities=(*known.capabilities, "levitates"))) == (
        "capability:levitates has no requirement and no exemption",
    )


def test_a_new_op_needs_a_requirement():
    known = inventory()
    assert gaps(replace(known, ops=(*known.ops, "convolve"))) == ("op:convolve has no requirement and no exemption",)


def test_a_new_fusion_needs_a_requirement():
    known = inventory()
    assert "mha with qk norm" in known.fusions
    assert gaps(replace(known, fusions=(*known.fusions, "whole_model"))) == (
        "fusion:whole_model has no requirement and no exemption",
    )


def test_an_op_without_random_arguments_is_not_covered(monkeypatch):
    monkeypatch.setattr(CATALOGUE["silu"], "checks", None)
    assert gaps() == ("op:silu has no random arguments, so that its cases can't be run",)


def test_a_claim_that_no_requirement_needs_is_not_tested():
    found = Requirements()
    for rule in REQUIREMENTS.values():
        found.add(replace(rule, needs=tuple(need for need in rule.needs if need != "thread_safe")))
    assert gaps(requirements=found) == ("claim thread_safe is needed by no requirement, so nothing tests it",)


def test_what_has_gone_may_not_be_covered():
    assert gaps(requirements=with_covers("op:transmute")) == ("AC-OP-001: covers op:transmute, which does not exist",)


def test_a_stale_exemption_fails():
    assert gaps(exempt={**EXEMPT, "op:linear": "too hard"})[0].startswith(
        "the exemption of op:linear is stale: AC-OP-001"
    )
    assert gaps(exempt={**EXEMPT, "hook:anychip_gone": "was here"}) == (
        "the exemption of hook:anychip_gone is stale: it does not exist",
    )


def test_an_exemption_needs_a_reason():
    name = next(iter(EXEMPT))
    assert gaps(exempt={**EXEMPT, name: " "}) == (f"the exemption of {name} gives no reason",)
