"""Which certificates satisfy a recipe, and what is said where none does. Knows plans; writes no certificate."""

import json
from dataclasses import replace

import pytest

from anychip.plan.explain import as_json, as_text
from anychip.plan.plan import HeldCertificate
from anychip.plan.resolve import resolve
from anychip_sdk.errors import ConformanceFailed
from anychip_sdk.profiles import PROFILES
from support.engines import make_recipe
from support.plans import facts, stub_backend, tiny_config

HELD = HeldCertificate("CONFORMANT", "serving-core", "std", "2026-11-01", signed=True, emulated=False)


def plan(certificate, wanted="serving-core", **backend_keys):
    requires = {} if wanted is None else {"conformance": wanted}
    recipe = make_recipe("/models/m", backend={"name": "stub", "requires": requires, **backend_keys})
    backend = stub_backend()
    device = backend.probe()[0]
    return resolve(recipe, facts(tiny_config()), backend, device, "named by the recipe", certificate=certificate)


def refused(certificate, wanted="serving-core", **backend_keys):
    with pytest.raises(ConformanceFailed) as failed:
        plan(certificate, wanted, **backend_keys)
    assert failed.value.exit_code == 7
    assert failed.value.hint == f"run: platform conformance run stub --profile {wanted}"
    return failed.value.message


@pytest.mark.parametrize("wanted", PROFILES)
@pytest.mark.parametrize("held", PROFILES)
def test_a_profile_is_met_by_itself_and_by_larger_ones(held, wanted):
    certificate = replace(HELD, profile=held)
    if PROFILES.index(held) >= PROFILES.index(wanted):
        assert plan(certificate, wanted).backend.certificate == certificate
    else:
        assert f"a certificate of 2026-11-01 for profile {held} that says CONFORMANT" in refused(certificate, wanted)


def test_no_certificate_is_refused():
    assert refused(None) == ("backend.requires.conformance is 'serving-core'; anychip-stub 0.1.0 holds no certificate")


def test_waivers_are_accepted_and_shown():
    text = as_text(plan(replace(HELD, word="CONFORMANT WITH 2 WAIVERS")))
    assert "certified  CONFORMANT WITH 2 WAIVERS, profile serving-core, level std, 2026-11-01, signed" in text


def test_a_certificate_that_does_not_count_is_refused_with_its_reason():
    stale = replace(HELD, profile="serving-full", problem="it is for other files (version 0.0.9) than those installed")
    assert refused(stale) == (
        "backend.requires.conformance is 'serving-core'; anychip-stub 0.1.0 holds a certificate of 2026-11-01 for "
        "profile serving-full that says CONFORMANT, which does not count: it is for other "
        "files (version 0.0.9) than those installed"
    )
    assert "signed; does not count: it is for other files" in as_text(plan(stale, None))


def test_an_unsigned_certificate_counts_and_is_said_to_be_unsigned():
    assert "2026-11-01, UNSIGNED\n" in as_text(plan(replace(HELD, signed=False)))


def test_an_emulated_certificate_is_said_to_be_one():
    assert "signed, EMULATED" in as_text(plan(replace(HELD, emulated=True), emulate=True))


def test_a_plan_shows_a_certificate_that_nobody_asked_for_and_none():
    assert json.loads(json.dumps(as_json(plan(HELD, None))))["backend"]["certificate"] == {
        "word": "CONFORMANT",
        "profile": "serving-core",
        "level": "std",
        "date": "2026-11-01",
        "signed": True,
        "emulated": False,
        "problem": "",
    }
    assert as_json(plan(None, None))["backend"]["certificate"] is None
    assert "certified" not in as_text(plan(None, None))
