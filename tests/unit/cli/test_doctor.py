"""`platform doctor`: which checks it makes for what it is given, how it shows them, how it exits."""

import json
import subprocess
import sys

import pytest

from anychip.cli.main import main
from anychip.doctor import host
from support import vendor_plugins as vendor
from support.tiny_models import make_tiny


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A backend without its chip and with an emulator, and one whose import raises."""
    monkeypatch.setenv("ANYCHIP_HOME", str(tmp_path / "home"))
    folder = vendor.install_with_emulator(tmp_path / "site")
    broken = "raise OSError('no libbolt.so')\n"
    vendor.install(folder, broken, name="bolt", module="bolt_chip", distribution="bolt-anychip", version="2.0")
    with vendor.alone_on_path(folder, monkeypatch, "acme_chip", "acme_emulator", "bolt_chip"):
        yield


@pytest.fixture
def recipe(tmp_path, site):
    make_tiny(tmp_path / "model", "llama")
    path = tmp_path / "svc.yaml"
    path.write_text(
        "version: 1\nname: svc\nmodel: {source: ./model}\nbackend: {name: acme}\n"
        "memory: {kv_tokens: 512}\nserver: {port: 0}\n"
    )
    return str(path)


def told(capsys, *arguments):
    """The exit code, and section -> check -> status."""
    code = main(["doctor", *arguments, "-o", "json"])
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] is (code == 0)
    found = {}
    for section in answer["sections"]:
        for one in section["findings"]:
            found.setdefault(section["title"], {})[one["area"]] = one["status"]
    return code, found


def test_of_all_backends_none_must_be_there(site, capsys):
    code, found = told(capsys)
    assert code == 0
    assert found["backend acme"] == {"device": "info"}
    assert found["backend bolt"] == {"plugin": "warn"}


@pytest.mark.parametrize(("name", "area"), [("acme", "device"), ("bolt", "plugin"), ("core", "plugin")])
def test_a_backend_that_is_named_must_be_there(site, capsys, name, area):
    code, found = told(capsys, "--backend", name)
    assert code == 4
    assert found[f"backend {name}"][area] == "fail"


def test_an_emulator_stands_for_the_chip(site, recipe, capsys):
    code, found = told(capsys, "--backend", "acme", "--emulate")
    assert (code, found["backend acme"]["device"]) == (0, "ok")
    code, found = told(capsys, recipe, "--emulate")
    assert code == 0
    assert found["recipe svc"]["model"] == "ok"
    assert told(capsys, recipe)[0] == 4


def test_a_recipe_can_be_looked_at_on_another_backend(recipe, capsys):
    code, found = told(capsys, recipe, "--backend", "bolt")
    assert (code, found["backend bolt"], found["recipe svc"]["plan"]) == (4, {"plugin": "fail"}, "info")


def test_the_text_says_what_to_do_on_a_line_of_its_own(site, capsys):
    assert main(["doctor", "--backend", "bolt"]) == 4
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert any(
        line.startswith("fail  plugin  backend 'bolt' (bolt-anychip 2.0): importing bolt_chip") for line in lines
    )
    assert any(line.startswith("to do: repair or pip uninstall bolt-anychip") for line in lines)
    assert lines[-1].startswith("1 missing, ")


def test_without_torch_no_backend_is_looked_at(site, monkeypatch, capsys):
    def broken(name):
        raise ImportError("no torch here")

    monkeypatch.setattr(host, "import_module", broken)
    code, found = told(capsys)
    assert (code, list(found)) == (4, ["host"])
    assert found["host"]["torch"] == "fail"


@pytest.mark.parametrize("arguments", [["--emulate"], ["--set", "server.port=1"]])
def test_options_that_need_a_recipe_are_refused_without_one(site, capsys, arguments):
    assert main(["doctor", *arguments]) == 2


def test_its_help_needs_no_torch():
    code = (
        "import sys\nfrom anychip.cli.main import main\nmain(['doctor', '--help'])\nassert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
