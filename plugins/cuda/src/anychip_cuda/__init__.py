"""The CUDA backend's place: it tells why no device can be used. Knows where a driver would show itself."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from anychip_sdk.backend import BackendInfo
from anychip_sdk.device import Device, DeviceConfig, DeviceInfo
from anychip_sdk.errors import DeviceAbsent
from anychip_sdk.hooks import hookimpl
from anychip_sdk.registry import Registrar

DRIVER = Path("/proc/driver/nvidia/version")
NODES = (Path("/dev"), "nvidia[0-9]*")
#: another chip's torch calls its devices cuda too; with these two there, they are no GPUs
IMPERSONATOR = ("torch_xmlir", Path("/dev/xpuctrl"))


def absence() -> str:
    """Why there is no device, from what the driver leaves in the file system; loads no vendor library."""
    module, control = IMPERSONATOR
    if find_spec(module) is not None and control.exists():
        return f"torch's cuda devices are Kunlun cards here ({module} is installed, {control} is there); use kunlun"
    folder, pattern = NODES
    nodes = sorted(node.name for node in folder.glob(pattern))
    if not DRIVER.exists() and not nodes:
        return "no driver is loaded (no /dev/nvidia0, no /proc/driver/nvidia/version); install the GPU's driver"
    if not nodes:
        return "the driver is loaded but no /dev/nvidia0 is visible; pass the device into the container"
    return f"{nodes[0]} is there, but this version of anychip-cuda has no kernels yet; use backend cpu"


@hookimpl
def anychip_backend() -> BackendInfo:
    return BackendInfo(name="cuda", vendor="NVIDIA", api=">=1.0,<2", absence=absence())


@hookimpl
def anychip_probe() -> Sequence[DeviceInfo]:
    return ()


@hookimpl
def anychip_open_device(device: DeviceInfo, config: DeviceConfig) -> Device:
    message = f"backend 'cuda': device '{device.name}' can't be opened: {absence()}"
    raise DeviceAbsent(message)


@hookimpl
def anychip_register_ops(registry: Registrar) -> None:
    """No kernels of its own yet: every op is the reference's."""


__all__ = ["anychip_backend", "anychip_open_device", "anychip_probe", "anychip_register_ops"]
