"""A native device as an ordinary Device: memory, copies, streams. Knows the device table; knows no op."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping
from ctypes import byref, c_uint64, c_void_p
from typing import Any

import torch

from anychip_sdk.device import Capabilities, Device, DeviceConfig, HostStream, MemoryInfo, Stream
from anychip_sdk.errors import BackendBroken, DeviceAbsent, MemoryInsufficient
from anychip_sdk.native import abi
from anychip_sdk.native.library import Library
from anychip_sdk.native.streams import NativeStream


def capabilities_of(info: abi.DeviceInfoC) -> Capabilities:
    """The capabilities as data; the preferred dtype first."""
    preferred = abi.DTYPES[info.preferred_dtype]
    others = [name for bit, name in enumerate(abi.DTYPES) if info.dtypes >> bit & 1 and name != preferred]
    return Capabilities(
        dtypes=tuple(getattr(torch, name) for name in (preferred, *others)),
        async_streams=bool(info.flags & abi.ASYNC_STREAMS),
    )


def versions_of(info: abi.DeviceInfoC) -> dict[str, str]:
    named = {"driver": info.driver, "runtime": info.runtime, "firmware": info.firmware}
    return {name: text.decode("utf-8", "replace") for name, text in named.items() if text}


def tensor_at(address: int, nbytes: int) -> torch.Tensor:
    """A uint8 tensor over foreign memory; its base object lives as long as any view of it."""
    if nbytes == 0:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), dtype=torch.uint8)


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two contiguous tensors share bytes."""
    first, second = one.data_ptr(), other.data_ptr()
    return first < second + other.nbytes and second < first + one.nbytes


class NativeDevice(Device):
    """One device of a library.

    A buffer goes back with `free`, or with its last reference. `close` releases all of them: no buffer may be read
    after it.
    """

    def __init__(self, library: Library, index: int) -> None:
        self._library = library
        self._index = index
        self._info = library.describe(index)
        self._capabilities = capabilities_of(self._info)
        self._handle: int | None = None
        self._buffers: dict[int, weakref.finalize[[int], Any]] = {}  # address -> gives it back

    @property
    def handle(self) -> int | None:
        """The library's pointer to the opened device; None before `init` and after `close`."""
        return self._handle

    @property
    def vendor_handle(self) -> int | None:
        """What the library offers to programs that link to it; None where it offers nothing."""
        slot = self._library.device.handle
        found: int | None = slot(self._opened()) if slot else None
        return found

    @property
    def torch_device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    def init(self, config: DeviceConfig) -> None:
        made = abi.sized(abi.ConfigC)
        assert isinstance(made, abi.ConfigC)
        made.threads, made.emulate = config.threads or 0, int(config.emulate)
        names, values = [text.encode() for text in config.options], [text.encode() for text in config.options.values()]
        made.option_count = len(names)
        made.option_names = (ctypes.c_char_p * len(names))(*names)
        made.option_values = (ctypes.c_char_p * len(values))(*values)
        handle = c_void_p()
        self._check(self._library.device.init(self._index, byref(made), byref(handle)), "init")
        if not handle.value:
            message = f"backend '{self._library.name}': init({self._index}) gave no device"
            raise BackendBroken(message)
        self._handle = handle.value

    def close(self) -> None:
        if self._handle is None:
            return
        for give_back in self._buffers.values():
            give_back.detach()
        self._buffers.clear()
        handle, self._handle = self._handle, None
        self._check(self._library.device.destroy(handle), "destroy")

    def memory(self) -> MemoryInfo:
        total, free = c_uint64(), c_uint64()
        self._check(self._library.device.memory(self._opened(), byref(total), byref(free)), "memory")
        return MemoryInfo(total.value, free.value)

    def alloc(self, nbytes: int, alignment: int = 64) -> torch.Tensor:
        address = c_void_p()
        status = self._library.device.alloc(self._opened(), nbytes, alignment, byref(address))
        if status == abi.OUT_OF_MEMORY:
            message = f"device {self._name}: {nbytes} bytes wanted, {self.memory().bytes_free} free"
            raise MemoryInsufficient(message)
        self._check(status, f"alloc({nbytes})")
        if nbytes == 0:
            self._give_back(address.value or 0)
            return tensor_at(0, 0)
        if not address.value or address.value % alignment:
            message = (
                f"backend '{self._library.name}': alloc({nbytes}) gave {address.value}, not aligned to {alignment}"
            )
            raise BackendBroken(message)
        base = (ctypes.c_uint8 * nbytes).from_address(address.value)
        give_back = weakref.finalize(base, self._give_back, address.value)
        give_back.atexit = False
        self._buffers[address.value] = give_back
        return torch.frombuffer(base, dtype=torch.uint8)

    def free(self, buffer: torch.Tensor) -> None:
        """Give a buffer back now; it must not be read afterwards.

        Raises:
            ValueError: it was not allocated here, or was given back already.
        """
        if buffer.numel() == 0:
            return
        give_back = self._buffers.get(buffer.data_ptr())
        if give_back is None:
            message = f"device {self._name}: the buffer at {buffer.data_ptr():#x} is not allocated"
            raise ValueError(message)
        give_back()

    def copy(self, dst: torch.Tensor, src: torch.Tensor, stream: Stream | None = None) -> None:
        own = stream if isinstance(stream, NativeStream) else None
        plain = dst.dtype == src.dtype and dst.shape == src.shape and dst.is_contiguous() and src.is_contiguous()
        if not plain or _overlap(dst, src):
            if own is not None:
                own.synchronize()
            # conversions and strided copies are torch's, on the host's side of the same memory
            dst.copy_(src.clone() if plain else src)
            return
        pointer = None if own is None else own.pointer
        arguments = (dst.data_ptr(), src.data_ptr(), dst.nbytes, abi.COPY_ANY, pointer)
        self._check(self._library.device.copy(self._opened(), *arguments), f"copy of {dst.nbytes} bytes")
        if own is None:
            return
        if self._is_own(dst) and self._is_own(src):
            own.hold(dst, src)
        else:  # ordinary host memory is the caller's again when this returns
            own.synchronize()

    def delay(self, stream: Stream, seconds: float) -> None:
        slot = self._library.device.delay
        if not slot or not isinstance(stream, NativeStream):
            super().delay(stream, seconds)
        else:
            self.stream_call("delay", stream.pointer, seconds)

    def synchronize(self) -> None:
        self._check(self._library.device.synchronize(self._opened(), None), "synchronize")

    def create_stream(self, priority: int = 0) -> Stream:
        slot = self._library.device.create_stream
        if not slot:
            return HostStream()
        pointer = c_void_p()
        self._check(slot(self._opened(), priority, byref(pointer)), "create_stream")
        return NativeStream(self, pointer.value or 0)

    def destroy_stream(self, stream: Stream) -> None:
        if isinstance(stream, NativeStream):
            stream.destroy()
        else:
            stream.synchronize()

    def resolve(self, name: str) -> torch.device:
        if name not in (self._library.name, self._name):
            message = f"backend '{self._library.name}': no device '{name}'; present: {self._name}"
            raise DeviceAbsent(message)
        return self.torch_device

    def versions(self) -> Mapping[str, str]:
        return versions_of(self._info)

    @property
    def _name(self) -> str:
        return f"{self._library.name}:{self._index}"

    def _opened(self) -> int:
        if self._handle is None:
            message = f"device {self._name} is not open: init was not called, or close was"
            raise BackendBroken(message)
        return self._handle

    def _check(self, status: int, call: str) -> None:
        self._library.check(status, f"device {self._name}: {call}")

    def _give_back(self, address: int) -> None:
        self._buffers.pop(address, None)
        if self._handle is not None and address:
            self._check(self._library.device.free(self._handle, address), "free")

    def _is_own(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self._buffers

    def stream_call(self, slot: str, *arguments: object) -> None:
        """Call one of the slots of streams and events."""
        self._check(getattr(self._library.device, slot)(self._opened(), *arguments), slot)

    @property
    def has_events(self) -> bool:
        return bool(self._library.device.record_event)


__all__ = ["NativeDevice", "capabilities_of", "tensor_at", "versions_of"]
