"""Present a shared object as an ordinary backend, through the same hooks. Knows both sides; decides nothing."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence

import torch

from anychip_sdk.backend import Backend, BackendInfo, load_backend
from anychip_sdk.device import Device, DeviceConfig, DeviceInfo
from anychip_sdk.errors import BackendBroken
from anychip_sdk.hooks import API_VERSION, PreparedWeight, hookimpl
from anychip_sdk.kv import KVPool, PoolSpec
from anychip_sdk.native import abi
from anychip_sdk.native.calls import STEP_BLOCK, EmbeddingCall, KernelCall, NativeWeight, tensor_struct
from anychip_sdk.native.device import NativeDevice, capabilities_of, versions_of
from anychip_sdk.native.library import Library, NativeOp, Need
from anychip_sdk.native.pool import NativeKVPool
from anychip_sdk.native.trial import try_out
from anychip_sdk.ops.base import CATALOGUE
from anychip_sdk.registry import KernelFunction, Registrar, at_least, at_most, multiple_of, one_of
from anychip_sdk.registry import Need as RegistryNeed


class NativePlugin:
    """The hooks of a library. It has no more of them than the library has tables for."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self._devices: list[NativeDevice] = []  # in the order of opening

    @hookimpl
    def anychip_backend(self) -> BackendInfo:
        library = self.library
        claims = {"device_aliases": "native"}  # native:0 is the first device of any library
        return BackendInfo(library.name, library.vendor, f"~={API_VERSION}", claims=claims, absence=library.absence)

    @hookimpl
    def anychip_probe(self) -> Sequence[DeviceInfo]:
        return tuple(self._probed(index) for index in range(self.library.device_count()))

    @hookimpl
    def anychip_open_device(self, device: DeviceInfo, config: DeviceConfig) -> Device:
        opened = NativeDevice(self.library, int(device.name.rpartition(":")[2]))
        self._devices = [one for one in self._devices if one.handle is not None]
        self._devices.append(opened)
        return opened

    @hookimpl
    def anychip_register_ops(self, registry: Registrar) -> None:
        for native in self.library.ops:
            known = CATALOGUE.get(native.name)
            takes_step = known is not None and known.step_index is not None
            registry.register(
                native.name,
                self._function(native),
                dtypes=[getattr(torch, name) for name in native.dtypes],
                requires={need.fact: _as_need(need) for need in native.needs},
                prepares_weight=bool(native.flags & abi.PREPARES_WEIGHT),
                prepare=STEP_BLOCK if takes_step else None,
                name=native.kernel,
                version=native.version,
            )

    @hookimpl
    def anychip_create_kv_pool(self, spec: PoolSpec, device: Device) -> KVPool | None:
        if self.library.kv_pool is None:
            return None
        assert isinstance(device, NativeDevice)
        return NativeKVPool(self.library, spec, device)

    @hookimpl
    def anychip_prepare_weight(self, name: str, tensor: torch.Tensor, op: str, device: Device) -> PreparedWeight | None:
        table = self.library.weights
        if table is None:
            return None
        assert isinstance(device, NativeDevice)
        tensor = tensor.contiguous()
        given, nbytes = tensor_struct(tensor), ctypes.c_uint64()
        about = (device.handle, op.encode(), name.encode(), ctypes.byref(given))
        self.library.check(table.prepared_bytes(*about, ctypes.byref(nbytes)), f"prepared_bytes of {name} for {op}")
        if not nbytes.value:
            return None
        out = device.alloc(nbytes.value)
        self.library.check(table.prepare(*about, out.data_ptr()), f"prepare of {name} for {op}")
        return PreparedWeight(NativeWeight(out, tensor.shape, tensor.dtype), nbytes.value, "native")

    def _probed(self, index: int) -> DeviceInfo:
        library, info = self.library, self.library.describe(index)
        if not info.product:
            message = f"{library.where}: describe({index}): product is NULL"
            raise BackendBroken(message)
        return DeviceInfo(
            name=f"{library.name}:{index}",
            product=info.product.decode("utf-8", "replace"),
            memory_bytes_total=info.bytes_total,
            memory_bytes_free=info.bytes_free,
            capabilities=capabilities_of(info),
            versions=versions_of(info),
            attributes={"library": library.path.name},
        )

    def _function(self, native: NativeOp) -> KernelFunction:
        known = CATALOGUE.get(native.name)
        if known is None:
            return _unknown  # the registry refuses it, and knows the nearest name
        call = EmbeddingCall if known.name == "embedding" else KernelCall
        return call(known, native, self._device, self.library.check)

    def _device(self) -> int | None:
        return next((one.handle for one in reversed(self._devices) if one.handle is not None), None)


def load_native(path: str | os.PathLike[str], *, trial: bool = True) -> NativePlugin:
    """The plugin of a shared object, to be handed to `load_backend`.

    Args:
        path: the file.
        trial: load, probe and open it in another process first, so that a crash becomes an error.

    Raises:
        BackendNotFound: there is no such file.
        BackendBroken: no shared object, a symbol or a slot is missing, a struct's size is wrong, or it crashes.
        BackendIncompatible: another ABI version, or a device with memory that the host can't address.
    """
    if trial:
        try_out(path)
    return NativePlugin(Library(path))


def load_native_backend(path: str | os.PathLike[str], *, trial: bool = True, emulate: bool = False) -> Backend:
    """A shared object as a loaded backend; its distribution is the file's name, its version the library's own."""
    plugin = load_native(path, trial=trial)
    library = plugin.library
    return load_backend(library.name, plugin, distribution=library.path.name, version=library.version, emulate=emulate)


def _unknown(*args: object) -> object:
    """Stands for a kernel of an op that the catalogue does not have, until the registry refuses it."""
    raise NotImplementedError


def _as_need(need: Need) -> RegistryNeed:
    if need.kind == abi.NEED_ONE_OF:
        return one_of(*need.values)
    kinds = {abi.NEED_AT_MOST: at_most, abi.NEED_AT_LEAST: at_least, abi.NEED_MULTIPLE_OF: multiple_of}
    return kinds[need.kind](int(need.values[0]))


__all__ = ["NativePlugin", "load_native", "load_native_backend"]
