"""Versions that don't go together are told by name: the stack itself would only be slow."""

import pytest

from anychip_kunlun.compatibility import judge
from anychip_sdk.errors import BackendIncompatible

GOOD = {
    "driver": "5.0.21.26",
    "runtime": "5.0.21",
    "torch": "2.9.0",
    "kunlun_ops": "0.1.58",
    "xspeedgate_ops": "1.5.0",
}


@pytest.mark.parametrize("changes", [{}, {"torch": "2.5.1"}, {"driver": "5.19.0.0", "runtime": "5.19.0"}])
def test_known_combinations_pass(changes):
    assert judge({**GOOD, **changes}) == ()


def test_unknown_versions_are_not_judged():
    assert judge({}) == ()


@pytest.mark.parametrize(
    ("changes", "severity", "text"),
    [
        ({"driver": "4.0.25", "runtime": "4.0.25"}, "refused", "driver is 4.0.25"),
        ({"torch": "2.6.0"}, "warned", "torch is 2.6.0"),
        ({"kunlun_ops": "0.1.12"}, "warned", "kunlun_ops is 0.1.12"),
        ({"xspeedgate_ops": "1.1.0"}, "warned", "xspeedgate_ops is 1.1.0"),
        ({"runtime": "5.37.0"}, "warned", "driver 5.0.21.26 and runtime 5.37.0 are of different releases"),
        ({"kunlun_ops": "unknown"}, "warned", "kunlun_ops is unknown"),
    ],
)
def test_another_one_is_named(changes, severity, text):
    [verdict] = judge({**GOOD, **changes})
    assert (verdict.severity, verdict.what) == (severity, text)
    assert verdict.expected
    assert verdict.source


def test_an_old_driver_is_refused_when_a_card_is_opened(make_rig):
    rig = make_rig(driver="4.0.25", runtime="4.0.25")
    with pytest.raises(BackendIncompatible, match=r"driver is 4\.0\.25; expected >=5\.0\.21"):
        rig.open()


def test_a_pair_of_different_releases_opens_with_a_warning(make_rig, caplog):
    make_rig(runtime="5.37.0").open()
    assert "runtime 5.37.0 are of different releases" in caplog.text


def test_the_doctor_lists_parts_versions_and_what_was_guessed(make_rig):
    found = make_rig(runtime="5.37.0").backend.diagnose()
    assert any(one.status == "warn" and "different releases" in one.what for one in found)
    assert any(one.status == "ok" and one.what == "kunlun_ops is 0.1.58" for one in found)
    guesses = [one for one in found if one.area == "to check on a card"]
    assert guesses
    assert all(one.status == "info" and one.source.startswith("inferred: ") for one in guesses)


def test_the_doctor_names_what_is_missing(make_rig):
    found = make_rig(nodes="none", missing_modules=("kunlun_ops",)).backend.diagnose()
    assert {(one.area, one.status) for one in found if one.status in ("fail", "warn")} == {
        ("device nodes", "fail"),
        ("driver", "warn"),
        ("kunlun_ops", "warn"),
    }
