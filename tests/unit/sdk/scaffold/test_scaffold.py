"""A new package is complete, consistent with itself, and never written over anything."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from anychip_sdk.backend import load_backend
from anychip_sdk.conformance.manifest import read_claims
from anychip_sdk.device import DeviceConfig
from anychip_sdk.errors import UsageError
from anychip_sdk.hooks import REQUIRED
from anychip_sdk.scaffold import RESERVED, TEMPLATES, names_for, scaffold
from anychip_sdk.scaffold.__main__ import main
from support.sources import ROOT

TEMPLATE_FOLDER = ROOT / "sdk/src/anychip_sdk/scaffold/templates"


@pytest.fixture
def package(tmp_path):
    return scaffold("acme", tmp_path).folder


@pytest.fixture
def plugin(package, monkeypatch):
    monkeypatch.syspath_prepend(str(package / "src"))
    for name in [name for name in sys.modules if name.partition(".")[0] == "anychip_acme"]:
        monkeypatch.delitem(sys.modules, name)
    import anychip_acme

    return anychip_acme


def test_every_template_is_used():
    assert {path.name for path in TEMPLATE_FOLDER.iterdir()} == {f"{name}.tmpl" for name in TEMPLATES}


def test_the_files_are_those_that_are_told(tmp_path):
    written = scaffold("acme", tmp_path)
    found = {path.relative_to(written.folder).as_posix() for path in written.folder.rglob("*") if path.is_file()}
    assert found == set(written.files)


def test_no_placeholder_is_left(package):
    texts = [path.read_text(encoding="utf-8") for path in package.rglob("*") if path.is_file()]
    assert all("%{" not in text for text in texts)


def test_python_files_are_python(package):
    sources = sorted(package.rglob("*.py"))
    assert len(sources) >= 6
    for source in sources:
        assert ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"), feature_version=(3, 10)))


def test_the_entry_point_is_named_once_and_is_the_backends(package, plugin):
    (line,) = re.findall(r'backends"\]\n(.*)\n', (package / "pyproject.toml").read_text(encoding="utf-8"))
    assert line == 'acme = "anychip_acme"'
    assert plugin.anychip_backend().name == "acme"


def test_it_loads_opens_and_claims_what_it_registers(package, plugin):
    backend = load_backend("acme", plugin, distribution="anychip-acme", version="0.1.0")
    (info,) = backend.probe()
    device = backend.open(info, DeviceConfig(threads=1))
    claims = read_claims(package / "src/anychip_acme/conformance.yaml", "acme")
    assert device.capabilities == info.capabilities
    assert [getattr(torch, name) for name in claims.dtypes] == list(info.capabilities.dtypes)
    own = {kernel.op for op in ("linear", "add") for kernel in backend.ops.kernels(op) if kernel.provider == "acme"}
    assert own == set(claims.ops)
    assert set(backend.hooks_implemented()) == set(REQUIRED)


def test_the_manifest_claims_no_more_than_the_device_has(package, plugin):
    claims = read_claims(package / "src/anychip_acme/conformance.yaml", "acme")
    (info,) = plugin.anychip_probe()
    assert claims.capabilities["async_streams"] is info.capabilities.async_streams
    assert claims.waivers == ()


def test_a_name_with_dashes_gets_a_module_that_can_be_imported():
    names = names_for("acme-2x")
    assert (names.distribution, names.module, names.label) == ("anychip-acme-2x", "anychip_acme_2x", "Acme2X")


@pytest.mark.parametrize(
    "name", ["", "Acme", "2acme", "acme_chip", "acme--x", "-acme", "acme-", "ac me", "../acme", "ä"]
)
def test_what_is_no_name_is_refused(name, tmp_path):
    with pytest.raises(UsageError, match="can't be a backend's name"):
        scaffold(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", RESERVED)
def test_names_that_mean_something_else_are_refused(name, tmp_path):
    with pytest.raises(UsageError, match=RESERVED[name]):
        scaffold(name, tmp_path)


def test_the_name_of_an_installed_package_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"anychip-cpu .* is installed already"):
        scaffold("cpu", tmp_path)


def test_a_refused_name_is_told_with_a_better_one():
    with pytest.raises(UsageError) as caught:
        names_for("Acme_Chip")
    assert caught.value.hint == "for example acme-chip"


def test_nothing_is_overwritten(package, tmp_path):
    before = {path: path.read_bytes() for path in package.rglob("*") if path.is_file()}
    with pytest.raises(UsageError, match="exists already; nothing was written"):
        scaffold("acme", tmp_path)
    assert {path: path.read_bytes() for path in package.rglob("*") if path.is_file()} == before


def test_a_file_in_the_folders_place_is_kept(tmp_path):
    (tmp_path / "anychip-acme").write_text("mine")
    with pytest.raises(UsageError, match="exists already"):
        scaffold("acme", tmp_path)
    assert (tmp_path / "anychip-acme").read_text() == "mine"


def test_an_empty_folder_is_filled(tmp_path):
    (tmp_path / "anychip-acme").mkdir()
    assert (scaffold("acme", tmp_path).folder / "pyproject.toml").exists()


def test_the_module_is_a_command(tmp_path, capsys):
    assert main(["acme", "--directory", str(tmp_path)]) == 0
    assert str(tmp_path / "anychip-acme/pyproject.toml") in capsys.readouterr().out.splitlines()
    assert main(["acme", "--directory", str(tmp_path)]) == 2
    assert "exists already" in capsys.readouterr().err


def test_the_new_package_passes_its_own_linter(package):
    ruff = Path(sys.executable).parent / "ruff"
    if not ruff.exists():
        pytest.skip("ruff is not installed")
    for command in (("check",), ("format", "--check")):
        done = subprocess.run(
            [str(ruff), *command, "--no-cache", "."],
            cwd=package,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
