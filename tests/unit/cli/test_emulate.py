"""`--emulate`: the backend's emulator is used where it is asked for, and everything says so."""

import io
import json
import signal
import sys

import pytest

import anychip.deploy.apply as applying
from anychip.cli.main import main
from anychip.deploy import services
from anychip.deploy.state import Store
from support import vendor_plugins as vendor
from support.deploying import fake_launch, write_recipe
from support.tiny_models import make_tiny


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A backend without its chip and with an emulator, and one without either."""
    folder = vendor.install_with_emulator(tmp_path / "site")
    vendor.install(
        folder,
        vendor.absent().replace('name="acme"', 'name="core"'),
        name="core",
        module="core_chip",
        distribution="core-anychip",
    )
    with vendor.alone_on_path(folder, monkeypatch, "acme_chip", "acme_emulator", "core_chip"):
        yield


@pytest.fixture
def recipe(tmp_path, site):
    make_tiny(tmp_path / "model", "llama")
    path = tmp_path / "acme.yaml"
    path.write_text(
        "version: 1\nname: acme\nmodel: {source: ./model}\nbackend: {name: acme}\nmemory: {kv_tokens: 512}\n"
    )
    return str(path)


def test_without_it_the_chip_is_missed_and_nothing_of_the_emulator_imported(recipe, capsys):
    assert main(["plan", recipe]) == 4
    assert "backend 'acme' 0.1.0: no device present" in capsys.readouterr().err
    assert "acme_emulator" not in sys.modules


@pytest.mark.parametrize("how", [["--emulate"], ["--set", "backend.emulate=true"]])
def test_a_plan_on_an_emulator_says_so(recipe, capsys, how):
    assert main(["plan", recipe, *how]) == 0
    assert "EMULATED: results are real, speed is not" in capsys.readouterr().out
    assert main(["plan", recipe, *how, "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["backend"]["emulated"] is True


def test_ops_on_an_emulator_say_so(recipe, capsys):
    assert main(["ops", recipe, "--emulate"]) == 0
    assert capsys.readouterr().out.startswith("acme, EMULATED")
    assert main(["ops", recipe, "--emulate", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["emulated"] is True


def test_a_graph_is_made_for_the_emulator(recipe, capsys):
    assert main(["graph", recipe, "--emulate", "--after", "replace"]) == 0
    assert "acme" in capsys.readouterr().out


def test_a_backend_without_an_emulator_is_exit_code_four(recipe, capsys):
    assert main(["plan", recipe, "--emulate", "--set", "backend.name=core"]) == 4
    assert "backend 'core' (core-anychip 0.1.0) has no emulator" in capsys.readouterr().err


def test_devices_shows_those_of_an_emulator_by_the_backend_s_name(site, capsys):
    assert main(["devices"]) == 0
    assert "acme:0" not in capsys.readouterr().out
    assert main(["devices", "--emulate", "acme"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:3] == ["acme", "EMULATED", "acme:0"]
    assert main(["devices", "--emulate", "acme", "-o", "json"]) == 0
    [device] = json.loads(capsys.readouterr().out)["devices"]
    assert (device["name"], device["emulated"]) == ("acme:0", True)
    assert main(["devices", "--emulate", "core"]) == 4


def test_apply_status_and_chat_say_that_a_service_is_emulated(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ANYCHIP_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("sys.stdin", io.StringIO())
    launch = fake_launch(emulated=True)
    monkeypatch.setattr(applying, "Launch", lambda: launch)
    before = signal.getsignal(signal.SIGTERM)
    path = str(write_recipe(tmp_path, extra="backend: {name: fake}"))
    try:
        assert main(["apply", path, "--emulate"]) == 0
        assert "(revision 1, fake EMULATED)" in capsys.readouterr().out
        assert main(["apply", path, "--emulate", "-o", "json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["action"], told["emulated"]) == ("unchanged", True)
        assert main(["status"]) == 0
        assert "fake EMULATED" in capsys.readouterr().out
        assert main(["status", "-o", "json"]) == 0
        assert json.loads(capsys.readouterr().out)["services"][0]["emulated"] is True
        assert main(["chat"]) == 0
        assert ", fake EMULATED. " in capsys.readouterr().err
    finally:
        signal.signal(signal.SIGTERM, before)
        services.down(Store(tmp_path / "home"), "svc")
