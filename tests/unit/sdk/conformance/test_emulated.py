"""What the suite tests where a backend's emulator is asked for, and what of the package alone."""

import sys

import pytest

from anychip_sdk import DeviceConfig
from anychip_sdk.conformance.claims import Claims
from anychip_sdk.conformance.command import conduct
from anychip_sdk.conformance.run.runner import Options, replay, run_in_process
from anychip_sdk.conformance.run.target import LibraryLoader, Loader, find_target, without_emulator
from anychip_sdk.errors import PreconditionFailed
from support import vendor_plugins as vendor
from support.conformance_runs import OddLoader

CLAIMS = Claims("acme", ("float32",), ops={"linear": ("float32",)})
MANIFEST = "api: 1\ndtypes: [float32]\nops: {linear: [float32]}\n"
#: puts something into builtins, as fakes of a vendor's modules may
PATCHING = """
import builtins

builtins.acme_fake = print
"""


@pytest.fixture
def site(tmp_path, monkeypatch):
    folder = vendor.install_with_emulator(tmp_path / "site")
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    yield folder
    for module in ("acme_chip", "acme_emulator"):
        sys.modules.pop(module, None)


def loader(emulate):
    return Loader("acme", "acme_chip", "acme-anychip", "0.1.0", emulate)


def test_results_say_that_the_device_was_an_emulator(site):
    config = DeviceConfig(emulate=True, threads=1)
    results = run_in_process(loader(True), CLAIMS, only=["AC-DEVICE-020"], profile="bringup", config=config)
    assert results.identity.emulated
    assert {case.status for case in results.cases} <= {"passed", "not_claimed"}


def test_a_target_loads_the_emulator_where_it_is_asked_for(site):
    (site / "conformance.yaml").write_text(MANIFEST)
    found = [find_target("acme", site / "conformance.yaml", emulate=emulate).load() for emulate in (False, True)]
    assert [(one.emulated, len(one.probe())) for one in found] == [(False, 0), (True, 1)]


def test_a_target_without_an_emulator_says_so():
    with pytest.raises(PreconditionFailed, match="has no emulator"):
        find_target("cpu", emulate=True).load()


def test_a_failure_is_repeated_on_the_emulator():
    emulated = Options(config=DeviceConfig(emulate=True, threads=1))
    assert replay("acme", "AC-OP-001", emulated).endswith("--emulate")
    assert not replay("acme", "AC-OP-001", Options()).endswith("--emulate")


def test_of_loaders_that_take_an_emulator_the_package_s_own_is_known():
    assert without_emulator(loader(True)) == loader(False)
    assert without_emulator(LibraryLoader("x.so", True)) == LibraryLoader("x.so")
    assert without_emulator(OddLoader("right")) == OddLoader("right")


@pytest.mark.slow
def test_what_an_emulator_puts_in_place_is_not_held_against_the_package(site, tmp_path):
    (site / "conformance.yaml").write_text(MANIFEST)
    emulator = site / "acme_emulator.py"
    emulator.write_text(vendor.example() + PATCHING)
    options = Options(only=("AC-DEVICE-005",), config=DeviceConfig(emulate=True, threads=1))
    answer = conduct("acme", options, out=tmp_path / "out", claims=site / "conformance.yaml")
    assert answer.value["counts"]["passed"] == 1
    assert answer.value["emulated"] is True
    assert ", EMULATED" in answer.text
