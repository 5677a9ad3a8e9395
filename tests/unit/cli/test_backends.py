"""`platform backends` and `platform devices`: broken plugins are listed, never fatal."""

import json
import sys

import pytest

from anychip.cli.main import main
from support import vendor_plugins as vendor


@pytest.fixture
def site(tmp_path, monkeypatch):
    """One backend that works, one whose import raises, one without a device."""
    vendor.install(tmp_path)
    broken = "raise OSError('no libbolt.so')\n"
    vendor.install(tmp_path, broken, name="bolt", module="bolt_chip", distribution="bolt-anychip", version="2.0")
    absent = vendor.example().replace("return [DeviceInfo(", "return [] and [DeviceInfo(")
    absent = absent.replace('name="acme", vendor', 'name="core", absence="no card in any slot", vendor')
    vendor.install(tmp_path, absent, name="core", module="core_chip", distribution="core-anychip", version="3.0")
    with vendor.alone_on_path(tmp_path, monkeypatch, "acme_chip", "bolt_chip", "core_chip"):
        yield


def test_backends_lists_without_importing(site, capsys):
    assert main(["backends"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["NAME", "DISTRIBUTION", "VERSION", "MODULE"],
        ["acme", "acme-anychip", "0.1.0", "acme_chip"],
        ["bolt", "bolt-anychip", "2.0", "bolt_chip"],
        ["core", "core-anychip", "3.0", "core_chip"],
    ]
    assert "acme_chip" not in sys.modules


def test_backends_load_checks_each_and_shows_hooks(site, capsys):
    assert main(["backends", "--load", "--output", "json"]) == 0
    acme, bolt, core = json.loads(capsys.readouterr().out)["backends"]
    assert acme["hooks"] == ["backend", "probe", "open_device", "register_ops"]
    assert (acme["api"], core["vendor"]) == (">=1.0,<2", "Acme")
    assert bolt["error"].startswith("backend 'bolt' (bolt-anychip 2.0): importing bolt_chip raised OSError")
    assert main(["backends", "--load"]) == 0
    assert "no libbolt.so" in capsys.readouterr().out


def test_devices_lists_what_is_there_and_why_others_are_not(site, capsys):
    assert main(["devices", "--output", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    (device,) = told["devices"]
    assert (device["backend"], device["name"], device["product"]) == ("acme", "acme:0", "Acme One")
    assert 0 < device["memory_bytes_free"] <= device["memory_bytes_total"]
    assert told["without"] == [
        {
            "backend": "bolt",
            "broken": True,
            "reason": "backend 'bolt' (bolt-anychip 2.0): importing bolt_chip raised OSError: no libbolt.so",
        },
        {"backend": "core", "broken": False, "reason": "no card in any slot"},
    ]


def test_devices_as_text(site, capsys):
    assert main(["devices"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[:4] == ["acme", "acme:0", "Acme", "One"]
    assert lines[2].startswith("bolt: broken: backend 'bolt' (bolt-anychip 2.0)")
    assert lines[3] == "core: no card in any slot"
