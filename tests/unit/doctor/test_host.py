"""What doctor says of the machine itself."""

import sys
from importlib import metadata

import pytest

from anychip.doctor import host
from support import vendor_plugins as vendor


def test_this_machine_can_run_anychip(monkeypatch, tmp_path):
    monkeypatch.setenv("ANYCHIP_HOME", str(tmp_path))
    found = {one.area: one for one in host.host_findings()}
    assert [one.status for one in found.values()] == ["ok", "ok", "ok", "info", "ok"]
    assert found["torch"].what.startswith(metadata.version("torch"))


def test_an_old_python_is_a_failure():
    found = host.python("3.8.1")
    assert (found.status, found.what, found.expected) == ("fail", "3.8.1", ">=3.10")


def test_each_package_out_of_range_is_named_with_what_installs_it(tmp_path, monkeypatch):
    vendor.install(tmp_path)
    with (tmp_path / "acme_anychip-0.1.0.dist-info" / "METADATA").open("a") as file:
        file.write("Requires-Dist: torch<1\n")
        file.write("Requires-Dist: acme-driver>=2\n")
        file.write("Requires-Dist: numpy\n")
        file.write("Requires-Dist: never-asked-for; extra == 'more'\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    old, absent = host.packages(["acme-anychip"])
    assert (old.status, old.hint) == ("fail", "pip install 'torch<1'")
    assert old.what == f"torch {metadata.version('torch')} is installed"
    assert old.expected == "<1, required by acme-anychip"
    assert (absent.what, absent.hint) == ("acme-driver is not installed", "pip install 'acme-driver>=2'")


def test_a_torch_that_cannot_be_imported_is_a_failure(monkeypatch):
    def broken(name):
        raise OSError("libtorch_cpu.so: cannot open shared object file")

    monkeypatch.setattr(host, "import_module", broken)
    found = host.torch()
    assert found.status == "fail"
    assert "OSError: libtorch_cpu.so" in found.what


@pytest.mark.parametrize(("free", "status"), [(1 << 40, "ok"), (1 << 20, "warn")])
def test_a_full_disk_under_the_state_is_a_warning(tmp_path, monkeypatch, free, status):
    monkeypatch.setattr(host.shutil, "disk_usage", lambda path: type("Usage", (), {"free": free}))
    assert host.state_folder(tmp_path / "not" / "yet").status == status


def test_a_file_in_the_state_s_place_is_a_failure(tmp_path):
    (tmp_path / "home").write_text("")
    found = host.state_folder(tmp_path / "home")
    assert found.status == "fail"
    assert "ANYCHIP_HOME" in found.hint
