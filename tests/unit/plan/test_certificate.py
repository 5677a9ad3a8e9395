"""Which of the certificates on a machine is taken for a backend and a device. Knows folders; runs no suite."""

from dataclasses import replace

import pytest

from anychip import backends
from anychip.plan.certificate import find_certificate
from anychip.plan.make import make_plan
from anychip_sdk.conformance.cases import suite_digest, suite_version
from anychip_sdk.conformance.certify.certificate import Certificate, seal, to_json
from anychip_sdk.conformance.results import Identity
from anychip_sdk.errors import ConformanceFailed
from anychip_sdk.installed import installed_digest
from support.engines import make_recipe
from support.tiny_models import make_tiny


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("ANYCHIP_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(scope="module")
def cpu():
    return backends.load("cpu")


@pytest.fixture(scope="module")
def device(cpu):
    return cpu.find_device(None)


@pytest.fixture
def write(home, cpu, device):
    """Puts a certificate of the CPU backend where runs put theirs."""
    count = []

    def put(*, identity=None, **fields):
        count.append(1)
        who = Identity(
            "cpu", cpu.distribution, cpu.version, installed_digest(cpu.distribution, "cpu"), "anychip", ">=1.0",
            device.name, device.product, device.memory_bytes_total, dict(device.versions),
        )  # fmt: skip
        bare = Certificate(
            profile="serving-core", level="std", verdict="CONFORMANT", is_conformant=True, counts={}, warnings=0,
            results_digest="", identity=replace(who, **(identity or {})), emulated=False,
            suite_version=suite_version(), suite_digest=suite_digest(), host={}, kill_score=None, started="",
            finished="", issued="2026-11-01T10:00:00+00:00", validity="",
        )  # fmt: skip
        folder = home / "certificates" / f"one-{len(count)}"
        folder.mkdir(parents=True)
        (folder / "certificate.json").write_text(to_json(seal(replace(bare, **fields))), encoding="utf-8")
        return folder / "certificate.json"

    return put


def test_a_machine_without_certificates_has_none(home, cpu, device):
    assert find_certificate(cpu, device) is None


def test_a_certificate_of_the_installed_files_counts(write, cpu, device):
    write()
    held = find_certificate(cpu, device)
    assert (held.word, held.profile, held.level, held.date) == ("CONFORMANT", "serving-core", "std", "2026-11-01")
    assert (held.signed, held.emulated, held.problem) == (False, False, "")


@pytest.mark.parametrize(
    ("identity", "problem"),
    [
        ({"digest": "0" * 64, "version": "0.0.9"}, "it is for other files (version 0.0.9) than those installed"),
        ({"product": "Another One"}, "it is for Another One, this is"),
        ({"versions": {"driver": "9.9"}}, "it was made with driver 9.9, this is of none"),
    ],
)
def test_one_for_something_else_does_not_count(write, cpu, device, identity, problem):
    write(identity=identity)
    assert problem in find_certificate(cpu, device).problem


def test_a_changed_one_does_not_count(write, cpu, device):
    path = write(profile="kernel")
    path.write_text(path.read_text().replace('"kernel"', '"serving-full"'))
    assert "a field of the certificate was changed" in find_certificate(cpu, device).problem


def test_a_verdict_that_is_none_does_not_count(write, cpu, device):
    write(verdict="NOT CONFORMANT", is_conformant=False)
    assert "NOT CONFORMANT" in find_certificate(cpu, device).problem


def test_one_of_an_emulator_counts_with_it_alone(write, cpu, device):
    write(emulated=True, profile="serving-full")
    assert "emulator" in find_certificate(cpu, device).problem
    assert find_certificate(cpu, device, emulate=True).problem == ""
    write()  # a lower one of the device goes before a higher one of the emulator
    assert find_certificate(cpu, device).profile == "serving-core"
    assert find_certificate(cpu, device, emulate=True).profile == "serving-full"


def test_the_highest_profile_goes_first(write, cpu, device):
    for profile in ("kernel", "serving-full", "bringup"):
        write(profile=profile)
    assert find_certificate(cpu, device).profile == "serving-full"


def test_a_recipe_that_requires_one_is_planned_with_it_alone(write, tmp_path):
    model = make_tiny(tmp_path / "model", "qwen3")
    recipe = make_recipe(model, backend={"requires": {"conformance": "serving-core"}})
    with pytest.raises(ConformanceFailed, match=r"anychip-cpu .* holds no certificate") as failed:
        make_plan(recipe)
    assert failed.value.exit_code == 7
    assert "platform conformance run cpu --profile serving-core" in failed.value.hint
    write()
    assert make_plan(recipe).backend.certificate.profile == "serving-core"
