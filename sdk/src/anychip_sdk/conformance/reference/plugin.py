"""The reference chip as a backend: two devices, the SDK's references as its kernels. Knows no requirement."""

from __future__ import annotations

import atexit
import shutil
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from anychip_sdk.backend import Backend, BackendInfo, load_backend
from anychip_sdk.conformance.claims import Claims
from anychip_sdk.conformance.reference.device import CAPABILITIES, AsyncReferenceDevice
from anychip_sdk.conformance.reference.kernels import reference_kernel
from anychip_sdk.conformance.reference.ledger import Ledger
from anychip_sdk.conformance.reference.memory import GRANULARITY, ChipMemory
from anychip_sdk.device import Device, DeviceConfig, DeviceInfo
from anychip_sdk.hooks import API_VERSION, hookimpl
from anychip_sdk.ops import CATALOGUE
from anychip_sdk.registry import KernelFunction, Registrar, dtype_name

NAME = "refchip"
CAPACITY_BYTES = 512 << 20


class AsyncReferencePlugin:
    """Override one method for one fault; `device_class` for the faults of a device.

    Args:
        folder: where processes of the same run keep what they hold; None: the process is alone.
        capacity_bytes: of each device.
    """

    device_class: type[AsyncReferenceDevice] = AsyncReferenceDevice
    devices = 2

    def __init__(self, folder: Path | None = None, capacity_bytes: int = CAPACITY_BYTES) -> None:
        names = [f"{NAME}:{index}" for index in range(self.devices)]
        self.chips = tuple(
            ChipMemory(name, capacity_bytes, self.ledger(folder and folder / name.replace(":", "-"))) for name in names
        )

    @hookimpl
    def anychip_backend(self) -> BackendInfo:
        return BackendInfo(name=NAME, vendor="reference", api=f"~={API_VERSION}")

    @hookimpl
    def anychip_probe(self) -> Sequence[DeviceInfo]:
        return tuple(self.describe(chip) for chip in self.chips)

    @hookimpl
    def anychip_open_device(self, device: DeviceInfo, config: DeviceConfig) -> Device:
        index = [chip.name for chip in self.chips].index(device.name)
        return self.open_chip(index)

    @hookimpl
    def anychip_register_ops(self, registry: Registrar) -> None:
        for op, kernel in self.kernels().items():
            version = CATALOGUE[op].version
            registry.register(op, kernel, dtypes=CAPABILITIES.dtypes, name=f"{NAME}_{op}", version=version)

    def open_chip(self, index: int) -> Device:
        return self.device_class(index, self.chips)

    def describe(self, chip: ChipMemory) -> DeviceInfo:
        return DeviceInfo(
            name=chip.name,
            product="reference chip",
            memory_bytes_total=chip.capacity_bytes,
            memory_bytes_free=chip.bytes_free,
            capabilities=CAPABILITIES,
            versions={"driver": "1.0", "runtime": "1.0"},
        )

    def kernels(self) -> Mapping[str, KernelFunction]:
        """Op -> kernel."""
        return {name: reference_kernel(name) for name in CATALOGUE}

    def ledger(self, folder: Path | None) -> Ledger:
        return Ledger(folder)


def reference_claims() -> Claims:
    """What the healthy reference chip claims: everything that it has."""
    dtypes = tuple(dtype_name(dtype) for dtype in CAPABILITIES.dtypes)
    return Claims(
        name=NAME,
        dtypes=dtypes,
        ops={name: dtypes for name in CATALOGUE},
        capabilities={
            "async_streams": True,
            "concurrent_streams": True,
            "exact_accounting": True,
            "multi_device": True,
            "deterministic": True,
        },
        limits={"alignment_bytes": 4096, "allocation_granularity_bytes": GRANULARITY},
    )


def _new_run() -> str:
    run = uuid.uuid4().hex
    atexit.register(shutil.rmtree, _folder(run), ignore_errors=True)
    return run


def _folder(run: str) -> Path:
    return Path(tempfile.gettempdir()) / f"anychip-reference-{run}"


@dataclass(frozen=True)
class ReferenceLoader:
    """Loads the reference chip, whole or with a fault; can be pickled, and copies in other processes see its memory.

    Attributes:
        fault: a name of `FAULTS`; None: healthy.
        capacity_bytes: of each device.
        run: names the folder in which its processes keep what they hold.
    """

    fault: str | None = None
    capacity_bytes: int = CAPACITY_BYTES
    run: str = field(default_factory=_new_run)

    @property
    def folder(self) -> Path:
        return _folder(self.run)

    def __call__(self) -> Backend:
        plugin = reference_backend(self.fault, folder=self.folder, capacity_bytes=self.capacity_bytes)
        return load_backend(NAME, plugin, distribution="anychip-sdk", version="1.0")


def reference_backend(
    fault: str | None = None, *, folder: Path | None = None, capacity_bytes: int = CAPACITY_BYTES
) -> AsyncReferencePlugin:
    """A plugin object for `load_backend`.

    Args:
        fault: a name of `FAULTS`; None: healthy.
        folder: see AsyncReferencePlugin.
        capacity_bytes: of each device.

    Raises:
        KeyError: no such fault.
    """
    if fault is None:
        return AsyncReferencePlugin(folder, capacity_bytes)
    from anychip_sdk.conformance.reference.faults import FAULTS

    return FAULTS[fault].plugin(folder, capacity_bytes)


__all__ = ["CAPACITY_BYTES", "NAME", "AsyncReferencePlugin", "ReferenceLoader", "reference_backend", "reference_claims"]
