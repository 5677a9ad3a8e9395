"""An opened card: memory, copies, streams, errors that come late. Knows the stack's namespace; knows no op."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch

from anychip_kunlun.streams import KunlunEvent, KunlunStream, Queues
from anychip_kunlun.vendor import VendorOps
from anychip_sdk.device import Capabilities, Device, DeviceConfig, DeviceInfo, Event, MemoryInfo, Stream
from anychip_sdk.errors import DeviceAbsent, DeviceLost, MemoryInsufficient

log = logging.getLogger("anychip_kunlun")


class KunlunDevice(Device):
    """One card through torch.cuda's names, which the vendor's torch serves."""

    def __init__(self, info: DeviceInfo, vendor: VendorOps, warnings: tuple[str, ...] = ()) -> None:
        self._info = info
        self._warnings = warnings
        self._vendor = vendor
        self._stack = vendor.stack
        self._trail = vendor.trail
        self._accelerator = self._stack.accelerator
        self._index = int(info.name.partition(":")[2])
        self._torch_device = torch.device(self._stack.device_type)
        self._queues = Queues(self._accelerator, self._index)
        self._streams: weakref.WeakSet[KunlunStream] = weakref.WeakSet()

    @property
    def torch_device(self) -> torch.device:
        return self._torch_device

    @property
    def capabilities(self) -> Capabilities:
        return self._info.capabilities

    def init(self, config: DeviceConfig) -> None:
        """Make the card current, and prove that it computes before anything large is loaded."""
        for warning in self._warnings:
            log.warning("%s: %s", self._info.name, warning)
        self._vendor.device_index = self._index
        self._enter()
        probe = self._stack.empty((1,), torch.float32, self._index)
        probe.fill_(1.0).add_(1.0)
        self._torch_device = probe.device
        self.synchronize()
        if probe.item() != 2.0:
            message = f"device {self._info.name}: 1 + 1 is {probe.item()}"
            raise DeviceAbsent(message, hint="the card or its driver is broken; see dmesg")

    def close(self) -> None:
        for stream in list(self._streams):
            with suppress(DeviceLost):  # what is lost goes with the process
                self.destroy_stream(stream)
        self._accelerator.empty_cache()

    def memory(self) -> MemoryInfo:
        """What the driver has free, and what torch keeps in reserve for the next allocations."""
        self._trail.check()
        free, total = self._accelerator.mem_get_info(self._index)
        reserve = self._accelerator.memory_reserved(self._index) - self._accelerator.memory_allocated(self._index)
        return MemoryInfo(total, min(total, free + max(0, reserve)))

    def alloc(self, nbytes: int, alignment: int = 64) -> torch.Tensor:
        self._enter()
        buffer = self._empty(nbytes)
        offset = -buffer.data_ptr() % alignment
        if offset:
            buffer = self._empty(nbytes + alignment)
            offset = -buffer.data_ptr() % alignment
        return buffer[offset : offset + nbytes].zero_()

    def copy(self, dst: torch.Tensor, src: torch.Tensor, stream: Stream | None = None) -> None:
        """Queued as given; views that overlap go through a third tensor."""
        self._enter()
        if dst.shape != src.shape:
            message = f"copy: {tuple(src.shape)} does not fit {tuple(dst.shape)}"
            raise ValueError(message)
        if _overlap(dst, src):
            src = src.clone()
        self._trail.last_op = "a copy"
        raw = _raw(stream)
        self._stack.copy(dst, src, raw)
        if isinstance(stream, KunlunStream):
            stream.hold(dst, src)

    def delay(self, stream: Stream, seconds: float) -> None:
        self._enter()
        self._stack.delay(_raw(stream), seconds)

    def synchronize(self) -> None:
        self._trail.waiting(lambda: self._accelerator.synchronize(self._index))

    def record(self) -> Event:
        """Behind what ran on the stream that torch's ops take."""
        self._enter()
        event = self._accelerator.Event(enable_timing=True)
        event.record(self._accelerator.current_stream(self._index))
        return KunlunEvent(event, self._trail)

    def create_stream(self, priority: int = 0) -> Stream:
        self._enter()
        stream = KunlunStream(self._queues.take(priority), self._accelerator, self._trail)
        self._streams.add(stream)
        return stream

    def destroy_stream(self, stream: Stream) -> None:
        stream.synchronize()
        if isinstance(stream, KunlunStream) and stream in self._streams:
            self._streams.discard(stream)
            self._queues.give(stream.raw)

    def resolve(self, name: str) -> torch.device:
        kind, _, index = name.partition(":")
        if kind not in ("kunlun", "cuda") or (index or str(self._index)) != str(self._index):
            message = (
                f"backend 'kunlun': no device '{name}'; opened: {self._info.name}, which is cuda:{self._index} too"
            )
            raise DeviceAbsent(message)
        return self._torch_device

    def versions(self) -> Mapping[str, str]:
        return self._info.versions

    def _enter(self) -> None:
        """The current device is the thread's own, and a new thread begins with device 0."""
        self._trail.check()
        self._accelerator.set_device(self._index)

    def _empty(self, nbytes: int) -> torch.Tensor:
        try:
            return self._stack.empty((nbytes,), torch.uint8, self._index)
        except self._accelerator.OutOfMemoryError as error:
            free = self._accelerator.mem_get_info(self._index)[0]
            reserve = self._accelerator.memory_reserved(self._index) - self._accelerator.memory_allocated(self._index)
            message = (
                f"device {self._info.name}: {nbytes} bytes wanted; {free} free, {max(0, reserve)} reserved in pieces "
                "that are too small"
            )
            raise MemoryInsufficient(message) from error


def _raw(stream: Stream | None) -> Any:
    if stream is None:
        return None
    if not isinstance(stream, KunlunStream):
        message = f"{type(stream).__name__} is not a stream of this device"
        raise TypeError(message)
    return stream.raw


def _overlap(dst: torch.Tensor, src: torch.Tensor) -> bool:
    """Whether two views of one storage may share bytes without being the same view."""
    if dst.untyped_storage().data_ptr() != src.untyped_storage().data_ptr() or not dst.numel():
        return False
    spans = [(view.storage_offset() * view.itemsize, _end(view)) for view in (dst, src)]
    (first, first_end), (second, second_end) = spans
    return first < second_end and second < first_end


def _end(view: torch.Tensor) -> int:
    last = sum((size - 1) * stride for size, stride in zip(view.shape, view.stride(), strict=True))
    return int(view.storage_offset() + last + 1) * view.itemsize


__all__ = ["KunlunDevice"]
