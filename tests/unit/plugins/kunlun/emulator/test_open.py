"""How a virtual host is opened, shared and left."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

import pytest
import torch

from anychip_kunlun.emulator import VARIABLE, Profile, close_stack, open_stack

LOADED = """
import sys
import anychip_kunlun
assert not [name for name in sys.modules if name.startswith("anychip_kunlun.emulator")]
"""


@pytest.fixture
def _settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "memory=8MiB,cards=2")


@pytest.mark.slow
def test_importing_the_backend_imports_nothing_of_the_emulator() -> None:
    subprocess.run([sys.executable, "-c", LOADED], check=True)


@pytest.mark.usefixtures("_settings")
def test_the_settings_come_from_the_variable() -> None:
    stack = open_stack()
    assert stack.accelerator.device_count() == 2
    assert stack.accelerator.mem_get_info(0)[1] == 8 << 20
    assert (stack.emulated, stack.device_type) == (True, "cpu")
    close_stack(stack)


@pytest.mark.usefixtures("_settings")
def test_the_hosts_folder_is_announced_with_the_first_memory_not_before() -> None:
    before = os.environ[VARIABLE]
    stack = open_stack()
    assert os.environ[VARIABLE] == before
    held = stack.empty((10,), torch.uint8, 0)
    assert Profile.parse(os.environ[VARIABLE]).host == stack.root
    second = open_stack()
    assert second.root == stack.root
    close_stack(stack)
    assert stack.root.exists()
    close_stack(second)
    assert not stack.root.exists()
    assert held.numel() == 10


def test_a_host_is_left_when_nobody_uses_it_any_more() -> None:
    import gc

    root = open_stack(Profile()).root
    gc.collect()
    assert not root.exists()


def test_memory_that_is_given_back_late_brings_no_folder_back() -> None:
    stack = open_stack(Profile())
    held = stack.empty((10,), torch.uint8, 0)
    close_stack(stack)
    del held
    stack.accelerator.empty_cache()
    assert stack.accelerator.memory_reserved(0) == 0
    assert not stack.root.exists()


def test_folders_of_killed_processes_go_with_the_next_host(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for name, guest in (("old", f"{dead.pid}-0"), ("living", f"{os.getpid()}-99")):
        folder = tmp_path / f"anychip-kunlun-host-{name}" / "guests"
        folder.mkdir(parents=True)
        (folder / guest).touch()
    stack = open_stack(Profile())
    assert stack.root.parent == tmp_path
    assert not (tmp_path / "anychip-kunlun-host-old").exists()
    assert (tmp_path / "anychip-kunlun-host-living").exists()
    close_stack(stack)


def test_contradicting_variables_are_a_setting_not_the_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XPU_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    plain, wrong = open_stack(Profile()), open_stack(Profile(visible_mismatch=True))
    assert "CUDA_VISIBLE_DEVICES" not in plain.environ
    assert (wrong.environ["XPU_VISIBLE_DEVICES"], wrong.environ["CUDA_VISIBLE_DEVICES"]) == ("0", "1")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "5"
    for stack in (plain, wrong):
        close_stack(stack)


def test_the_stacks_variables_are_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BKCL_CHECK_AW", raising=False)
    stack = open_stack(Profile())
    stack.environ["BKCL_CHECK_AW"] = "0"
    assert "BKCL_CHECK_AW" not in os.environ
    close_stack(stack)
