"""The backends whose chips have no kernels here yet: they load and say truthfully why there is no device."""

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
    assert all(len(backend.ops.kernels(op)) == 1 for op in backend.ops.catalogue)


@pytest.mark.parametrize(("name", "node"), [("cuda", "nvidia0"), ("kunlun", "xpu0")])
@pytest.mark.parametrize(
    ("driver", "device", "text"),
    [
        (False, False, "no driver is loaded"),
        (True, False, "the driver is loaded but no /dev/{node} is visible"),
        (True, True, "{node} is there, but this version of anychip-{name} has no kernels yet"),
    ],
)
def test_the_reason_follows_what_the_driver_left(monkeypatch, tmp_path, name, node, driver, device, text):
    plugin = PLUGINS[name]
    if driver:
        (tmp_path / "version").write_text("5.0.21")
    if device:
        (tmp_path / node).write_text("")
    monkeypatch.setattr(plugin, "DRIVER", tmp_path / "version")
    monkeypatch.setattr(plugin, "NODES", (tmp_path, plugin.NODES[1]))
    assert plugin.anychip_backend().absence.startswith(text.format(name=name, node=node))


def test_kunlun_takes_cuda_names_and_asks_for_its_driver():
    info = anychip_kunlun.anychip_backend()
    assert info.claims["device_aliases"] == "cuda"
    assert info.requirements.driver == ">=5.0.21"
