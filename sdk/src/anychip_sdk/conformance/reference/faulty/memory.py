"""Faults of memory: wrong counts, wrong addresses, wrong content, leaks. Knows no check."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import torch

from anychip_sdk.conformance.reference.device import AsyncReferenceDevice
from anychip_sdk.conformance.reference.faulty.base import device_fault, plugin_fault
from anychip_sdk.conformance.reference.ledger import Ledger
from anychip_sdk.conformance.reference.memory import Block, address_of
from anychip_sdk.conformance.reference.plugin import AsyncReferencePlugin
from anychip_sdk.conformance.reference.streams import WorkerEvent, WorkerStream
from anychip_sdk.device import DeviceConfig, MemoryInfo, Stream
from anychip_sdk.errors import MemoryInsufficient
from anychip_sdk.ops import CATALOGUE
from anychip_sdk.registry import KernelFunction


@device_fault("AC-MEMORY-002")
class FreeBytesAreStale(AsyncReferenceDevice):
    """Free bytes are those of the moment when the device was opened."""

    def init(self, config: DeviceConfig) -> None:
        super().init(config)
        self._at_start = super()._bytes_free()

    def _bytes_free(self) -> int:
        return self._at_start if self.is_open else super()._bytes_free()


@device_fault("AC-MEMORY-001")
class TotalFollowsUse(AsyncReferenceDevice):
    """The total leaves out what is in use."""

    def memory(self) -> MemoryInfo:
        return MemoryInfo(self._bytes_free(), self._bytes_free())


@device_fault("AC-MEMORY-002")
class SmallBuffersAreNotCounted(AsyncReferenceDevice):
    """Buffers below a page are left out of the count."""

    def _bytes_free(self) -> int:
        small = sum(block.charged for block in self._blocks.values() if block.nbytes < 4096)
        return super()._bytes_free() + small


@device_fault("AC-MEMORY-003")
class AlignmentIsIgnored(AsyncReferenceDevice):
    """Every buffer is aligned to 8 bytes, whatever was asked for."""

    def _take(self, nbytes: int, alignment: int) -> Block:
        block = super()._take(nbytes + 8, alignment)
        self.memory_of_chip.move(block, block.whole, block.offset + 8, nbytes)
        return block


@device_fault("AC-MEMORY-004")
class BuffersAreNotCleared(AsyncReferenceDevice):
    """Memory of alloc holds what was there before."""

    def _clear(self, block: Block) -> None:
        return


@device_fault("AC-MEMORY-005")
class BuffersOverlap(AsyncReferenceDevice):
    """Some buffers begin inside the one before them."""

    def _take(self, nbytes: int, alignment: int) -> Block:
        block = super()._take(nbytes, alignment)
        last = next(reversed(self._blocks.values()), None)
        if last is not None and nbytes == 64 and last.nbytes > 128:
            self.memory_of_chip.move(block, last.whole, last.offset + 64, nbytes)
        return block

    def _check_guards(self, block: Block) -> None:
        return


@device_fault("AC-MEMORY-006")
class ExhaustionIsUntyped(AsyncReferenceDevice):
    """What does not fit raises a plain RuntimeError."""

    def _take(self, nbytes: int, alignment: int) -> Block:
        try:
            return super()._take(nbytes, alignment)
        except MemoryInsufficient as error:
            message = "out of memory"
            raise RuntimeError(message) from error


@device_fault("AC-MEMORY-006")
class ExhaustionLeaks(AsyncReferenceDevice):
    """A refused allocation keeps the part that it had got."""

    def _take(self, nbytes: int, alignment: int) -> Block:
        try:
            return super()._take(nbytes, alignment)
        except MemoryInsufficient:
            self.memory_of_chip.alloc(4096, 64)
            raise


@device_fault("AC-MEMORY-007")
class FreesTwice(AsyncReferenceDevice):
    """A buffer that is freed twice is handed out twice."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self._last: Block | None = None
        self._twice: list[Block] = []

    def free(self, buffer: torch.Tensor) -> None:
        self._last = self._blocks.get(address_of(buffer), self._last)
        super().free(buffer)

    def _refuse_free(self, buffer: torch.Tensor) -> None:
        if self._last is not None:
            self._twice = [self._last, self._last]

    def _take(self, nbytes: int, alignment: int) -> Block:
        return self._twice.pop() if self._twice else super()._take(nbytes, alignment)


@plugin_fault("AC-MEMORY-008")
class KernelReadsFreeMemory(AsyncReferencePlugin):
    """The norm's kernel leaves the last column as it finds it."""

    def kernels(self) -> Mapping[str, KernelFunction]:
        exact = CATALOGUE["rms_norm"].reference

        def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
            out = torch.empty_like(x)
            out[..., :-1] = exact(x, weight, eps)[..., :-1]
            return out

        return {**super().kernels(), "rms_norm": rms_norm}


class _Alone(Ledger):
    def bytes_elsewhere(self) -> int:
        return 0


@plugin_fault("AC-MEMORY-009")
class OtherProcessesAreNotCounted(AsyncReferencePlugin):
    """What other processes hold is reported as free."""

    def ledger(self, folder: Path | None) -> Ledger:
        return _Alone(folder)


class _LeakyEvent(WorkerEvent):
    kept: ClassVar[list[bytearray]] = []

    def __init__(self) -> None:
        super().__init__()
        self.kept.append(bytearray(4096))


class _LeakyStream(WorkerStream):
    def new_event(self) -> WorkerEvent:
        return _LeakyEvent()


@device_fault("AC-MEMORY-010")
class EventsLeak(AsyncReferenceDevice):
    """Every event leaves 4 KiB behind."""

    stream_class = _LeakyStream

    def close(self) -> None:
        super().close()
        _LeakyEvent.kept.clear()


@device_fault("AC-MEMORY-010")
class StreamsLeakDescriptors(AsyncReferenceDevice):
    """Every stream leaves a file descriptor open."""

    def create_stream(self, priority: int = 0) -> Stream:
        self._descriptors.append(os.open(os.devnull, os.O_RDONLY))
        return super().create_stream(priority)

    def init(self, config: DeviceConfig) -> None:
        super().init(config)
        self._descriptors: list[int] = []

    def close(self) -> None:
        super().close()
        while self._descriptors:
            os.close(self._descriptors.pop())


@device_fault("AC-MEMORY-010")
class StreamsLeakThreads(AsyncReferenceDevice):
    """A destroyed stream's thread goes on."""

    def _end_stream(self, stream: WorkerStream) -> None:
        stream.drain()
        self._left.append(stream)

    def init(self, config: DeviceConfig) -> None:
        super().init(config)
        self._left: list[WorkerStream] = []

    def close(self) -> None:
        super().close()
        while self._left:
            self._left.pop().stop()


@device_fault("AC-MEMORY-010")
class CopiesLeakMemory(AsyncReferenceDevice):
    """Every copy to the device keeps a staging buffer."""

    def _copy_now(self, dst: torch.Tensor, src: torch.Tensor) -> None:
        self.memory_of_chip.alloc(512, 64)
        super()._copy_now(dst, src)


@device_fault("AC-MEMORY-010")
class OpeningLeaks(AsyncReferenceDevice):
    """Every opened device leaves a context behind."""

    contexts: ClassVar[list[Block]] = []

    def init(self, config: DeviceConfig) -> None:
        super().init(config)
        self.memory_of_chip.alloc(4096, 64)


__all__ = [
    "AlignmentIsIgnored",
    "BuffersAreNotCleared",
    "BuffersOverlap",
    "CopiesLeakMemory",
    "EventsLeak",
    "ExhaustionIsUntyped",
    "ExhaustionLeaks",
    "FreeBytesAreStale",
    "FreesTwice",
    "KernelReadsFreeMemory",
    "OpeningLeaks",
    "OtherProcessesAreNotCounted",
    "SmallBuffersAreNotCounted",
    "StreamsLeakDescriptors",
    "StreamsLeakThreads",
    "TotalFollowsUse",
]
