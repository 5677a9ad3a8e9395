"""A whole backend: the host's memory, presented as the chip "acme". Knows the SDK; knows nothing of anychip."""

import os
from collections.abc import Mapping, Sequence

import torch
from torch.nn import functional

from anychip_sdk import BackendInfo, Capabilities, Device, DeviceConfig, DeviceInfo, MemoryInfo, Registrar, hookimpl
from anychip_sdk.errors import DeviceAbsent

CAPABILITIES = Capabilities(dtypes=(torch.float32, torch.bfloat16))
VERSIONS = {"driver": "1.2.3", "runtime": torch.__version__}
FLOATS = (torch.float32, torch.bfloat16)


class AcmeDevice(Device):
    torch_device = torch.device("cpu")
    capabilities = CAPABILITIES

    def memory(self) -> MemoryInfo:
        page = os.sysconf("SC_PAGE_SIZE")
        return MemoryInfo(os.sysconf("SC_PHYS_PAGES") * page, os.sysconf("SC_AVPHYS_PAGES") * page)

    def synchronize(self) -> None:
        return

    def resolve(self, name: str) -> torch.device:
        if name not in ("acme", "acme:0"):
            raise DeviceAbsent(f"no device '{name}'; there is acme:0")
        return self.torch_device

    def versions(self) -> Mapping[str, str]:
        return VERSIONS


@hookimpl
def anychip_backend() -> BackendInfo:
    return BackendInfo(name="acme", vendor="Acme", api=">=1.0,<2")


@hookimpl
def anychip_probe() -> Sequence[DeviceInfo]:
    memory = AcmeDevice().memory()
    return [DeviceInfo("acme:0", "Acme One", memory.bytes_total, memory.bytes_free, CAPABILITIES, VERSIONS)]


@hookimpl
def anychip_open_device(device: DeviceInfo, config: DeviceConfig) -> Device:
    return AcmeDevice()


@hookimpl
def anychip_register_ops(registry: Registrar) -> None:
    registry.register("linear", functional.linear, dtypes=FLOATS)
