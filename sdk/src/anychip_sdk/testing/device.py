"""A device in host memory that counts every byte, and a plugin around it. Knows no kernel but the references."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from anychip_sdk.backend import BackendInfo
from anychip_sdk.device import Capabilities, Device, DeviceConfig, DeviceInfo, MemoryInfo
from anychip_sdk.errors import DeviceAbsent, MemoryInsufficient
from anychip_sdk.hooks import API_VERSION, hookimpl
from anychip_sdk.registry import Registrar

MIB = 1 << 20
CAPABILITIES = Capabilities(dtypes=(torch.float32, torch.bfloat16, torch.float16, torch.float64))


class ReferenceDevice(Device):
    """Host memory of a given size; `bytes_used` and `bytes_peak` say what was allocated through it.

    Args:
        name: the backend's name; the device is `name:0`.
        capacity_bytes: how much it has.
    """

    def __init__(self, name: str = "reference", capacity_bytes: int = 1024 * MIB) -> None:
        self.name = name
        self.capacity_bytes = capacity_bytes
        self.bytes_peak = 0
        self.is_open = False
        self._allocated: dict[int, int] = {}

    @property
    def torch_device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    @property
    def bytes_used(self) -> int:
        return sum(self._allocated.values())

    def init(self, config: DeviceConfig) -> None:
        self.is_open = True

    def close(self) -> None:
        self.is_open = False

    def memory(self) -> MemoryInfo:
        return MemoryInfo(self.capacity_bytes, self.capacity_bytes - self.bytes_used)

    def alloc(self, nbytes: int, alignment: int = 64) -> torch.Tensor:
        free = self.memory().bytes_free
        if nbytes > free:
            message = f"device {self.name}:0: {nbytes} bytes wanted, {free} free"
            raise MemoryInsufficient(message)
        whole = torch.zeros(nbytes + alignment, dtype=torch.uint8)
        offset = -whole.data_ptr() % alignment
        buffer = whole[offset : offset + nbytes]
        self._allocated[buffer.data_ptr()] = nbytes
        self.bytes_peak = max(self.bytes_peak, self.bytes_used)
        return buffer

    def free(self, buffer: torch.Tensor) -> None:
        """Give back a buffer of `alloc`.

        Raises:
            ValueError: it is not one, or was given back already.
        """
        if self._allocated.pop(buffer.data_ptr(), None) is None:
            message = f"device {self.name}:0: the buffer at {buffer.data_ptr():#x} is not allocated"
            raise ValueError(message)

    def synchronize(self) -> None:
        return

    def resolve(self, name: str) -> torch.device:
        if name not in (self.name, f"{self.name}:0"):
            message = f"backend '{self.name}': no device '{name}'; present: {self.name}:0"
            raise DeviceAbsent(message)
        return self.torch_device

    def versions(self) -> Mapping[str, str]:
        return {"driver": "1.0"}


class ReferencePlugin:
    """A complete backend without kernels of its own: every op is the reference's."""

    def __init__(self, name: str, capacity_bytes: int) -> None:
        self.name = name
        self.device = ReferenceDevice(name, capacity_bytes)

    @hookimpl
    def anychip_backend(self) -> BackendInfo:
        return BackendInfo(name=self.name, vendor="reference", api=f"~={API_VERSION}")

    @hookimpl
    def anychip_probe(self) -> Sequence[DeviceInfo]:
        memory = self.device.memory()
        return (
            DeviceInfo(
                name=f"{self.name}:0",
                product="reference device",
                memory_bytes_total=memory.bytes_total,
                memory_bytes_free=memory.bytes_free,
                capabilities=CAPABILITIES,
                versions=self.device.versions(),
            ),
        )

    @hookimpl
    def anychip_open_device(self, device: DeviceInfo, config: DeviceConfig) -> Device:
        return self.device

    @hookimpl
    def anychip_register_ops(self, registry: Registrar) -> None:
        """Nothing: what is not registered falls back to the reference."""


def reference_plugin(name: str = "reference", capacity_bytes: int = 1024 * MIB) -> ReferencePlugin:
    """A plugin to hand to `load_backend`, or to start an own one from."""
    return ReferencePlugin(name, capacity_bytes)


__all__ = ["ReferenceDevice", "ReferencePlugin", "reference_plugin"]
