"""Faults of finding, opening and loading devices. Knows no check."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import torch

from anychip_sdk.conformance.reference.device import AsyncReferenceDevice
from anychip_sdk.conformance.reference.faulty.base import device_fault, plugin_fault
from anychip_sdk.conformance.reference.ledger import Ledger
from anychip_sdk.conformance.reference.memory import Block, ChipMemory
from anychip_sdk.conformance.reference.plugin import CAPACITY_BYTES, AsyncReferencePlugin
from anychip_sdk.conformance.reference.streams import WorkerStream
from anychip_sdk.device import DeviceInfo
from anychip_sdk.hooks import hookimpl


@plugin_fault("AC-DEVICE-001")
class ProbeChangesItsMind(AsyncReferencePlugin):
    """Every other probe lists the devices the other way round."""

    probes = 0

    @hookimpl
    def anychip_probe(self) -> Sequence[DeviceInfo]:
        self.probes += 1
        found = [self.describe(chip) for chip in self.chips]
        return found if self.probes % 2 else found[::-1]


@plugin_fault("AC-DEVICE-002")
class ProbeNeedsADriver(AsyncReferencePlugin):
    """The probe raises where the environment of a driver is missing."""

    @hookimpl
    def anychip_probe(self) -> Sequence[DeviceInfo]:
        if "PATH" not in os.environ:
            message = "the driver is not installed"
            raise OSError(message)
        return tuple(self.describe(chip) for chip in self.chips)


@device_fault("AC-DEVICE-003")
class OpenedIsAnother(AsyncReferenceDevice):
    """The opened device has other versions than the probed one."""

    def versions(self) -> Mapping[str, str]:
        return {"driver": "2.0", "runtime": "1.0"}


@device_fault("AC-DEVICE-003")
class AnyNameResolves(AsyncReferenceDevice):
    """Every device name is accepted."""

    def resolve(self, name: str) -> torch.device:
        return self.torch_device


@device_fault("AC-DEVICE-004")
class ClosesOnce(AsyncReferenceDevice):
    """Closing a closed device raises."""

    def close(self) -> None:
        if not self.is_open:
            message = "the device is not open"
            raise RuntimeError(message)
        super().close()


@plugin_fault("AC-DEVICE-005")
class PatchesTorch(AsyncReferencePlugin):
    """Loading it replaces a function of torch."""

    def __init__(self, folder: Path | None = None, capacity_bytes: int = CAPACITY_BYTES) -> None:
        super().__init__(folder, capacity_bytes)
        torch.nn.functional.hardtanh = partial(torch.nn.functional.hardtanh)


@plugin_fault("AC-DEVICE-006")
class StartsAThread(AsyncReferencePlugin):
    """Loading it starts a thread."""

    def __init__(self, folder: Path | None = None, capacity_bytes: int = CAPACITY_BYTES) -> None:
        super().__init__(folder, capacity_bytes)
        threading.Thread(target=threading.Event().wait, args=(5.0,), daemon=True).start()


@device_fault("AC-DEVICE-007")
class HangsAfterFork(AsyncReferenceDevice):
    """A forked process waits for threads that it doesn't have."""

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            threading.Event().wait()


@device_fault("AC-DEVICE-007")
class DiesAfterFork(AsyncReferenceDevice):
    """A forked process gets an error that says nothing."""

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            message = "-1"
            raise RuntimeError(message)


class _RemembersTheDead(Ledger):
    def _is_alive(self, pid: int) -> bool:
        return True


@plugin_fault("AC-DEVICE-008")
class MemoryOutlivesItsProcess(AsyncReferencePlugin):
    """What a killed process held stays taken."""

    def ledger(self, folder: Path | None) -> Ledger:
        return _RemembersTheDead(folder)


@device_fault("AC-DEVICE-009")
class CountsAllDevices(AsyncReferenceDevice):
    """What is allocated on one device is counted on all."""

    def _bytes_free(self) -> int:
        return self.capacity_bytes - sum(chip.bytes_used for chip in self._chips)


@device_fault("AC-DEVICE-010")
class FreesForeignBuffers(AsyncReferenceDevice):
    """A buffer of another device is freed there, under its owner's hands."""

    def _refuse_free(self, buffer: torch.Tensor) -> None:
        for chip in self._chips:
            block = chip.owner(buffer)
            if block is not None:
                chip.recycle(block)


@device_fault("AC-DEVICE-010")
class LosesForeignWork(AsyncReferenceDevice):
    """Work on a stream of another device is dropped without a word."""

    def _own(self, stream: object) -> WorkerStream:  # wider on purpose
        if isinstance(stream, WorkerStream) and not self._is_own(stream):
            return _Sink(self.device_name, 0, self._defer, self._raise_errors)
        return super()._own(stream)  # type: ignore[arg-type]


class _Sink(WorkerStream):
    def submit(self, name: str, run: object, finished: object = None) -> None:
        if name != "copy":
            super().submit(name, run)  # type: ignore[arg-type]


@device_fault("AC-DEVICE-011", raises=["a buffer of refchip:"])
class OneCurrentDevice(AsyncReferenceDevice):
    """The current device is one for all threads: a buffer lands on whichever was named last."""

    current: ChipMemory | None = None

    def _take(self, nbytes: int, alignment: int) -> Block:
        OneCurrentDevice.current = self.memory_of_chip
        time.sleep(0.0005)  # another thread names its own
        return OneCurrentDevice.current.alloc(nbytes, alignment)


__all__ = [
    "AnyNameResolves",
    "ClosesOnce",
    "CountsAllDevices",
    "DiesAfterFork",
    "FreesForeignBuffers",
    "HangsAfterFork",
    "LosesForeignWork",
    "MemoryOutlivesItsProcess",
    "OneCurrentDevice",
    "OpenedIsAnother",
    "PatchesTorch",
    "ProbeChangesItsMind",
    "ProbeNeedsADriver",
    "StartsAThread",
]
