"""What doctor says of one backend: found, missing, out of range, and the backend's own lines."""

import dataclasses

import pytest

from anychip.doctor.backend import backend_findings
from anychip_sdk import Finding, Requirements, hookimpl, load_backend
from support.plans import GIB, StubPlugin


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("ANYCHIP_HOME", str(tmp_path))


def examined(requirements=None, own=None, emulate=False, **options):
    plugin = StubPlugin("stub", **options)
    if requirements is not None:
        plugin.info = dataclasses.replace(plugin.info, requirements=requirements)
    if own is not None:
        plugin.anychip_diagnose = hookimpl(own)
    if emulate:
        plugin.anychip_emulator = hookimpl(lambda: StubPlugin("stub"))
    backend = load_backend("stub", plugin, distribution="anychip-stub", version="0.1.0", emulate=emulate)
    found = {}
    for one in backend_findings(backend):
        found.setdefault(one.area, []).append(one)
    return found


def test_a_backend_with_a_device_is_in_order():
    found = examined()
    assert {area: [one.status for one in ones] for area, ones in found.items()} == {
        "plugin": ["ok"],
        "device": ["ok"],
        "device memory": ["ok"],
        "certificate": ["info"],
    }
    assert found["device"][0].what == "stub:0, Stub One, driver 5.1.0"


def test_an_absent_device_is_a_failure_with_the_backend_s_reason():
    [device] = examined(present=False)["device"]
    assert (device.status, device.what) == ("fail", "its card is not there")


@pytest.mark.parametrize(("driver", "status", "what"), [("5.1", "ok", "5.1.0"), ("6", "fail", "5.1.0 is there")])
def test_the_driver_is_compared_with_the_backend_s_range(driver, status, what):
    [found] = examined(requirements=Requirements(driver=f">={driver}"))["driver"]
    assert (found.status, found.what, found.expected) == (status, what, f">={driver}")


def test_a_version_that_the_device_does_not_report_is_a_failure():
    [found] = examined(requirements=Requirements(runtime=">=1"))["runtime"]
    assert (found.status, found.what) == ("fail", "stub:0 reports none")


def test_a_device_whose_memory_others_hold_is_a_warning():
    [found] = examined(capacity=10 * GIB, free=4 * GIB)["device memory"]
    assert (found.status, found.what) == ("warn", "stub:0: 4.0 GiB free of 10.0 GiB")


def test_the_backend_s_own_findings_follow():
    own = Finding("matrix unit", "warn", "runs at half speed", hint="cool it", source="data sheet 3.1")
    assert examined(own=lambda: [own])["matrix unit"] == [own]


def test_a_backend_that_cannot_diagnose_itself_is_a_failure():
    [found] = examined(own=lambda: 1 // 0)["diagnosis"]
    assert found.status == "fail"
    assert "ZeroDivisionError" in found.what


def test_an_emulated_device_is_told_apart():
    found = examined(present=False, emulate=True)
    assert any("EMULATED" in one.what for one in found["plugin"])
    assert found["device"][0].status == "ok"
    assert found["certificate"][0].hint == "platform conformance run stub --emulate"
