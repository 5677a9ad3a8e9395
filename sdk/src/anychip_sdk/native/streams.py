"""Streams and events of a library behind the SDK's interfaces. Knows their slots; knows no memory and no op."""

from __future__ import annotations

import weakref
from ctypes import byref, c_double, c_int32, c_void_p
from typing import TYPE_CHECKING

import torch

from anychip_sdk.device import Event, HostEvent, Stream

if TYPE_CHECKING:
    from anychip_sdk.native.device import NativeDevice


class NativeStream(Stream):
    """A stream of the library's; keeps what a copy reads and writes alive until it is done."""

    def __init__(self, device: NativeDevice, pointer: int) -> None:
        self.pointer: int | None = pointer
        self._device = device
        self._held: list[torch.Tensor] = []

    def hold(self, *tensors: torch.Tensor) -> None:
        self._held += tensors

    def record(self) -> Event:
        if not self._device.has_events:
            self.synchronize()
            return HostEvent()
        pointer = c_void_p()
        self._device.stream_call("record_event", self._live(), byref(pointer))
        return NativeEvent(self._device, pointer.value or 0)

    def wait(self, event: Event) -> None:
        if isinstance(event, NativeEvent):
            self._device.stream_call("wait_event", self._live(), event.pointer)
        else:
            event.synchronize()

    def synchronize(self) -> None:
        self._device.stream_call("synchronize", self._live())
        self._held.clear()

    def destroy(self) -> None:
        if self.pointer is not None:
            self._device.stream_call("destroy_stream", self.pointer)
            self.pointer = None
            self._held.clear()

    def _live(self) -> int:
        if self.pointer is None:
            message = "the stream was destroyed"
            raise ValueError(message)
        return self.pointer


class NativeEvent(Event):
    """An event of the library's, destroyed with its last reference."""

    def __init__(self, device: NativeDevice, pointer: int) -> None:
        self.pointer = pointer
        self._device = device
        weakref.finalize(self, _destroy_event, device, device.handle, pointer).atexit = False

    def query(self) -> bool:
        is_done = c_int32()
        self._device.stream_call("query_event", self.pointer, byref(is_done))
        return bool(is_done.value)

    def synchronize(self) -> None:
        self._device.stream_call("synchronize_event", self.pointer)

    def elapsed_s(self, since: Event) -> float:
        if not isinstance(since, NativeEvent):
            message = f"{type(since).__name__} is not an event of this device"
            raise TypeError(message)
        seconds = c_double()
        self._device.stream_call("elapsed", since.pointer, self.pointer, byref(seconds))
        return seconds.value


def _destroy_event(device: NativeDevice, handle: int | None, pointer: int) -> None:
    if handle is not None and device.handle == handle:  # closing the device took its events along
        device.stream_call("destroy_event", pointer)


__all__ = ["NativeEvent", "NativeStream"]
