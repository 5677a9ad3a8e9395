"""The Kunlun backend's place: it tells why no device can be used. Knows where a driver would show itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from anychip_sdk.backend import BackendInfo, Requirements
from anychip_sdk.device import Device, DeviceConfig, DeviceInfo
from anychip_sdk.errors import DeviceAbsent
from anychip_sdk.hooks import hookimpl
from anychip_sdk.registry import Registrar

DRIVER = Path("/proc/kunlun/version")
NODES = (Path("/dev"), "xpu[0-9]*")


def absence() -> str:
    """Why there is no device, from what the driver leaves in the file system; loads no vendor library."""
    folder, pattern = NODES
    nodes = sorted(node.name for node in folder.glob(pattern))
    if not DRIVER.exists() and not nodes:
        return "no driver is loaded (no /dev/xpu0, no /proc/kunlun/version); install the XPU driver, 5.0.21 or later"
    if not nodes:
        return "the driver is loaded but no /dev/xpu0 is visible; pass /dev/xpu0 and /dev/xpuctrl into the container"
    return f"{nodes[0]} is there, but this version of anychip-kunlun has no kernels yet; use backend cpu"


@hookimpl
def anychip_backend() -> BackendInfo:
    return BackendInfo(
        name="kunlun",
        vendor="Kunlunxin",
        api=">=1.0,<2",
        requirements=Requirements(driver=">=5.0.21"),
        # the chip's own torch calls its devices cuda:N, so recipes written for it do too
        claims={"device_aliases": "cuda"},
        absence=absence(),
    )


@hookimpl
def anychip_probe() -> Sequence[DeviceInfo]:
    return ()


@hookimpl
def anychip_open_device(device: DeviceInfo, config: DeviceConfig) -> Device:
    message = f"backend 'kunlun': device '{device.name}' can't be opened: {absence()}"
    raise DeviceAbsent(message)


@hookimpl
def anychip_register_ops(registry: Registrar) -> None:
    """No kernels of its own yet: every op is the reference's."""


__all__ = ["anychip_backend", "anychip_open_device", "anychip_probe", "anychip_register_ops"]
