"""A library's own KV pool behind the SDK's interface. Knows the pool table; knows no token."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import byref, c_int64, c_void_p

import torch

from anychip_sdk.errors import BackendBroken, KVPoolExhausted
from anychip_sdk.kv import KVLayout, KVPool, KVStats, PoolSpec, check_pairs
from anychip_sdk.native import abi
from anychip_sdk.native.calls import CODES
from anychip_sdk.native.device import NativeDevice, tensor_at
from anychip_sdk.native.library import Library
from anychip_sdk.state import StateGroup


class NativeKVPool(KVPool):
    """Pages that the library counts, and slots; it lays out both."""

    def __init__(self, library: Library, spec: PoolSpec, device: NativeDevice) -> None:
        assert library.kv_pool is not None
        self._library = library
        self._table = library.kv_pool
        self._spec = spec
        layout, pool = abi.sized(abi.KVLayoutC), c_void_p()
        assert isinstance(layout, abi.KVLayoutC)
        wanted = _SpecStruct(spec)
        status = self._table.create(device.handle, byref(wanted.struct), byref(layout), byref(pool))
        library.check(status, "kv_pool.create")
        if not pool.value:
            message = f"backend '{library.name}': kv_pool.create gave no pool"
            raise BackendBroken(message)
        self._pool: int | None = pool.value
        self._layout = KVLayout(
            spec.page_size,
            layout.pages,
            spec.slots,
            spec.dtype,
            layout.bytes_per_token,
            layout.bytes_per_slot,
            layout.alignment or 1,
        )
        self._tensors = [
            [self._read(index, group, layer) for layer in range(group.layers)]
            for index, group in enumerate(spec.groups)
        ]

    @property
    def groups(self) -> tuple[StateGroup, ...]:
        return self._spec.groups

    @property
    def layout(self) -> KVLayout:
        return self._layout

    def alloc(self, count: int) -> list[int]:
        if count < 0:
            message = f"cannot allocate {count} pages"
            raise ValueError(message)
        pages = (c_int64 * count)()
        status = self._table.alloc(self._pool, count, pages)
        if status == abi.OUT_OF_MEMORY:
            raise KVPoolExhausted(count, self.stats().pages_free)
        self._library.check(status, f"kv_pool.alloc({count})")
        return list(pages)

    def free(self, pages: Sequence[int]) -> None:
        self._library.check(self._table.free(self._pool, len(pages), _numbers(pages)), "kv_pool.free")

    def retain(self, pages: Sequence[int]) -> None:
        self._library.check(self._table.retain(self._pool, len(pages), _numbers(pages)), "kv_pool.retain")

    def refcount(self, page: int) -> int:
        count = c_int64()
        self._library.check(self._table.refcount(self._pool, page, byref(count)), f"kv_pool.refcount({page})")
        return count.value

    def copy_pages(self, src: Sequence[int], dst: Sequence[int]) -> None:
        check_pairs("copy_pages", src, dst)
        status = self._table.copy_pages(self._pool, len(src), _numbers(src), _numbers(dst))
        self._library.check(status, "kv_pool.copy_pages")

    def copy_slots(self, src: Sequence[int], dst: Sequence[int]) -> None:
        if not self._table.copy_slots:
            super().copy_slots(src, dst)
            return
        check_pairs("copy_slots", src, dst)
        status = self._table.copy_slots(self._pool, len(src), _numbers(src), _numbers(dst))
        self._library.check(status, "kv_pool.copy_slots")

    def clear_slots(self, slots: Sequence[int]) -> None:
        if not self._table.clear_slots:
            super().clear_slots(slots)
            return
        self._library.check(self._table.clear_slots(self._pool, len(slots), _numbers(slots)), "kv_pool.clear_slots")

    def tensors(self, group: int, layer: int) -> tuple[torch.Tensor, ...]:
        return self._tensors[group][layer]

    def stats(self) -> KVStats:
        free, shared = c_int64(), c_int64()
        self._library.check(self._table.stats(self._pool, byref(free), byref(shared)), "kv_pool.stats")
        total = self._layout.pages
        return KVStats(total, free.value, total - free.value, shared.value)

    def close(self) -> None:
        if self._pool is not None:
            pool, self._pool = self._pool, None
            self._tensors = []
            self._library.check(self._table.destroy(pool), "kv_pool.destroy")

    def _read(self, index: int, group: StateGroup, layer: int) -> tuple[torch.Tensor, ...]:
        """The tensors of one layer of a group, as views of the library's memory."""
        found = (abi.TensorC * len(group.spec.tensors))()
        where = f"kv_pool.tensors({index}, {layer})"
        self._library.check(self._table.tensors(self._pool, index, layer, found), where)
        paged = (self._layout.pages, self._layout.page_size)
        room = paged if group.spec.kind == "paged" else (self._layout.slots,)
        return tuple(
            self._view(one, (*room, *tensor.shape), tensor.dtype or self._spec.dtype, where)
            for one, tensor in zip(found, group.spec.tensors, strict=True)
        )

    def _view(self, found: abi.TensorC, expected: tuple[int, ...], dtype: torch.dtype, where: str) -> torch.Tensor:
        dims = len(expected)
        shape, strides = tuple(found.shape[:dims]), tuple(found.strides[:dims])
        if found.ndim != dims or shape != expected or found.dtype != CODES[dtype] or min(strides) < 0:
            message = f"backend '{self._library.name}': {where}: shape {shape}, expected {expected} of {dtype}"
            raise BackendBroken(message)
        elements = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        memory = tensor_at(found.data + found.byte_offset, elements * dtype.itemsize)
        return memory.view(dtype).as_strided(shape, strides)


class _SpecStruct:
    """An anychip_kv_spec_t and what its pointers point to."""

    def __init__(self, spec: PoolSpec) -> None:
        made = abi.sized(abi.KVSpecC)
        assert isinstance(made, abi.KVSpecC)
        self._tensors = [_tensor_structs(group, spec.dtype) for group in spec.groups]
        self._groups = (abi.StateGroupC * len(spec.groups))()
        for struct, group, tensors in zip(self._groups, spec.groups, self._tensors, strict=True):
            struct.name = group.spec.name.encode()
            struct.kind = abi.STATE_PAGED if group.spec.kind == "paged" else abi.STATE_SLOT
            struct.layers, struct.window = group.layers, group.spec.window or 0
            struct.tensor_count, struct.tensors = len(tensors), tensors
        made.group_count, made.groups = len(spec.groups), self._groups
        made.page_size, made.slots = spec.page_size, spec.slots
        made.pages_max, made.budget_bytes = spec.pages_max or 0, spec.budget_bytes
        self.struct = made


def _tensor_structs(group: StateGroup, dtype: torch.dtype) -> ctypes.Array[abi.StateTensorC]:
    made = (abi.StateTensorC * len(group.spec.tensors))()
    for struct, tensor in zip(made, group.spec.tensors, strict=True):
        if len(tensor.shape) + 2 > abi.MAX_DIMS:
            message = f"state '{group.spec.name}': {tensor.name} has {len(tensor.shape)} dimensions, at most "
            raise BackendBroken(message + f"{abi.MAX_DIMS - 2} can be handed to a library")
        code = CODES.get(tensor.dtype or dtype)
        if code is None:
            message = f"state '{group.spec.name}': {tensor.name} is of {tensor.dtype or dtype}, which has no number in "
            raise BackendBroken(message + "anychip_backend.h and can't be handed to a library")
        struct.name, struct.dtype, struct.ndim = tensor.name.encode(), code, len(tensor.shape)
        for place, size in enumerate(tensor.shape):
            struct.shape[place] = size
    return made


def _numbers(pages: Sequence[int]) -> ctypes.Array[c_int64]:
    return (c_int64 * len(pages))(*pages)


__all__ = ["NativeKVPool"]
