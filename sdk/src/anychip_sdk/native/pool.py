"""A library's own KV pool behind the SDK's interface. Knows the pool table; knows no token."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import byref, c_int64, c_void_p

import torch

from anychip_sdk.errors import BackendBroken, KVPoolExhausted
from anychip_sdk.kv import KVLayout, KVPool, KVSpec, KVStats
from anychip_sdk.native import abi
from anychip_sdk.native.calls import CODES
from anychip_sdk.native.device import NativeDevice, tensor_at
from anychip_sdk.native.library import Library


class NativeKVPool(KVPool):
    """Pages that the library counts and lays out."""

    def __init__(self, library: Library, spec: KVSpec, device: NativeDevice) -> None:
        assert library.kv_pool is not None
        self._library = library
        self._table = library.kv_pool
        self._spec = spec
        layout, pool = abi.sized(abi.KVLayoutC), c_void_p()
        assert isinstance(layout, abi.KVLayoutC)
        wanted = _spec_struct(spec)
        status = self._table.create(device.handle, byref(wanted), byref(layout), byref(pool))
        library.check(status, "kv_pool.create")
        if not pool.value or not layout.axes:
            message = f"backend '{library.name}': kv_pool.create gave no pool, or no axes"
            raise BackendBroken(message)
        self._pool: int | None = pool.value
        axes = tuple(layout.axes.decode().split())
        self._layout = KVLayout(
            spec.page_size, layout.pages, axes, spec.dtype, layout.bytes_per_token, layout.alignment or 1
        )
        self._layers = [self._read_layer(index) for index in range(spec.layers)]

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
        if len(src) != len(dst):
            message = f"copy_pages: {len(src)} sources, {len(dst)} destinations"
            raise ValueError(message)
        status = self._table.copy_pages(self._pool, len(src), _numbers(src), _numbers(dst))
        self._library.check(status, "kv_pool.copy_pages")

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self._layers[index]

    def stats(self) -> KVStats:
        free, shared = c_int64(), c_int64()
        self._library.check(self._table.stats(self._pool, byref(free), byref(shared)), "kv_pool.stats")
        total = self._layout.pages
        return KVStats(total, free.value, total - free.value, shared.value)

    def close(self) -> None:
        if self._pool is not None:
            pool, self._pool = self._pool, None
            self._layers = []
            self._library.check(self._table.destroy(pool), "kv_pool.destroy")

    def _read_layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = abi.TensorC(), abi.TensorC()
        self._library.check(self._table.layer(self._pool, index, byref(keys), byref(values)), f"kv_pool.layer({index})")
        return self._view(keys, index), self._view(values, index)

    def _view(self, found: abi.TensorC, index: int) -> torch.Tensor:
        spec = self._spec
        expected = (self._layout.pages, spec.page_size, spec.kv_heads, spec.head_dim)
        shape, strides = tuple(found.shape[:4]), tuple(found.strides[:4])
        if found.ndim != 4 or shape != expected or found.dtype != CODES[spec.dtype] or min(strides) < 0:
            message = f"backend '{self._library.name}': kv_pool.layer({index}): shape {shape}, expected {expected}"
            raise BackendBroken(message)
        elements = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        memory = tensor_at(found.data + found.byte_offset, elements * spec.dtype.itemsize)
        return memory.view(spec.dtype).as_strided(shape, strides)


def _spec_struct(spec: KVSpec) -> abi.KVSpecC:
    made = abi.sized(abi.KVSpecC)
    assert isinstance(made, abi.KVSpecC)
    made.layers, made.kv_heads, made.head_dim = spec.layers, spec.kv_heads, spec.head_dim
    made.dtype, made.page_size = CODES[spec.dtype], spec.page_size
    made.pages_max, made.budget_bytes = spec.pages_max or 0, spec.budget_bytes
    return made


def _numbers(pages: Sequence[int]) -> ctypes.Array[c_int64]:
    return (c_int64 * len(pages))(*pages)


__all__ = ["NativeKVPool"]
