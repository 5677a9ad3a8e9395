"""The backends whose chips are not here: they load and say truthfully why there is no device."""

import sys
from types import ModuleType

import pytest

import anychip_cuda
import anychip_kunlun
from anychip_sdk import DeviceConfig, DeviceInfo, load_backend
from anychip_sdk.errors import DeviceAbsent

PLUGINS = {"cuda": anychip_cuda, "kunlun": anychip_kunlun}


@pytest.mark.parametrize("name", PLUGINS)
def test_it_loads_and_finds_no_device_and_says_why(name):
    backend = load_backend(name, PLUGINS[name], distribution=f"anychip-{name}", version="0")
    assert backend.probe() == ()
    with pytest.raises(DeviceAbsent, match=r"no device present: .+"):
        backend.find_device(None)
    with pytest.raises(DeviceAbsent, match="can't be opened"):
        backend.open(DeviceInfo(f"{name}:0", "chip", 1, 1), DeviceConfig())


@pytest.mark.parametrize(
    ("driver", "device", "text"),
    [
        (False, False, "no driver is loaded"),
        (True, False, "the driver is loaded but no /dev/nvidia0 is visible"),
        (True, True, "nvidia0 is there, but this version of anychip-cuda has no kernels yet"),
    ],
)
def test_the_reason_follows_what_the_driver_left(monkeypatch, tmp_path, driver, device, text):
    if driver:
        (tmp_path / "version").write_text("580.1")
    if device:
        (tmp_path / "nvidia0").write_text("")
    monkeypatch.setattr(anychip_cuda, "DRIVER", tmp_path / "version")
    monkeypatch.setattr(anychip_cuda, "NODES", (tmp_path, anychip_cuda.NODES[1]))
    assert anychip_cuda.anychip_backend().absence.startswith(text)


@pytest.mark.parametrize(("module", "node"), [(True, True), (True, False), (False, True)])
def test_cuda_refuses_cards_that_only_call_themselves_cuda(monkeypatch, tmp_path, module, node):
    control = tmp_path / "xpuctrl"
    if node:
        control.write_text("")
    if module:
        fake = ModuleType("torch_xmlir")
        fake.__spec__ = sys.__spec__
        monkeypatch.setitem(sys.modules, "torch_xmlir", fake)
    monkeypatch.setattr(anychip_cuda, "IMPERSONATOR", ("torch_xmlir", control))
    refused = "cuda devices are Kunlun cards here" in anychip_cuda.anychip_backend().absence
    assert refused == (module and node)


def test_kunlun_names_every_missing_part_and_takes_cuda_names():
    info = anychip_kunlun.anychip_backend()
    for part in ("device nodes: no /dev/xpu0", "driver: no /proc/kunlun/version", "torch_xmlir: ", "kunlun_ops: "):
        assert part in info.absence
    assert info.claims["device_aliases"] == "cuda"
    assert info.requirements.driver == ">=5.0.21"
