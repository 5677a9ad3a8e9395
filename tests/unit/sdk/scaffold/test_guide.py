"""The guide's twenty lines are twenty lines, load, and claim what they register."""

import re
import sys

import pytest

from anychip_sdk.backend import load_backend
from anychip_sdk.check.loading import contradictions, unclaimed
from anychip_sdk.conformance.manifest import read_claims
from anychip_sdk.device import DeviceConfig
from support.vendor_guide import FILES, write


@pytest.fixture
def backend(tmp_path, monkeypatch):
    write(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "src"))
    monkeypatch.delitem(sys.modules, "acme_chip", raising=False)
    import acme_chip

    yield load_backend("acme", acme_chip, distribution="anychip-acme", version="0.1.0")
    del sys.modules["acme_chip"]


def test_they_are_twenty_lines():
    lines = [line for line in FILES["src/acme_chip/__init__.py"].splitlines() if line.strip()]
    assert len(lines) <= 20


def test_their_device_opens_and_is_what_was_probed(backend):
    (info,) = backend.probe()
    device = backend.open(info, DeviceConfig(threads=1))
    assert device.capabilities == info.capabilities
    assert dict(device.versions()) == dict(info.versions)


def test_their_claims_are_what_they_register(backend, tmp_path):
    claims = read_claims(tmp_path / "src/acme_chip/conformance.yaml", "acme")
    assert list(contradictions(claims, backend, backend.probe())) == []
    assert list(unclaimed(claims, backend)) == []


def test_their_entry_point_is_the_backend(backend):
    assert re.search(r'^acme = "acme_chip"$', FILES["pyproject.toml"], re.MULTILINE)
    assert backend.info.name == "acme"
