"""The pool of KV pages as the chip's attention wants it: heads before tokens. Knows pages; knows no token.

Memory is [layers, 2, pages, kv_heads, page_size, head_dim] in one allocation. `layer` gives views with the SDK's axes
(page, slot, head, dim), so that references run on them; kernels turn them back with `head_major`, which moves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from anychip_sdk.device import Device
from anychip_sdk.errors import MemoryInsufficient
from anychip_sdk.kv import TOKEN_MAJOR, KVLayout, KVPool, KVSpec, KVStats, PageLedger

#: tokens of a page that the attention ops take
PAGE_SIZES = (16, 64, 128)
ALIGNMENT = 512


def head_major(cache: torch.Tensor) -> torch.Tensor:
    """A cache of the pool as the ops want it: [pages, kv_heads, page_size, head_dim], contiguous."""
    return cache.transpose(1, 2)


class KunlunKVPool(KVPool):
    """One allocation; pages are given, shared and taken back on the host."""

    def __init__(self, spec: KVSpec, device: Device) -> None:
        bytes_per_token = 2 * spec.layers * spec.kv_heads * spec.head_dim * spec.dtype.itemsize
        bytes_per_page = bytes_per_token * spec.page_size
        pages = spec.budget_bytes // bytes_per_page
        if spec.pages_max is not None:
            pages = min(pages, spec.pages_max)
        if pages < 1:
            message = f"KV pool: one page takes {bytes_per_page} bytes, the budget is {spec.budget_bytes}"
            raise MemoryInsufficient(message)
        if not spec.dtype.is_floating_point:
            message = f"KV pool: keys and values in {spec.dtype} need scales, which this backend does not keep"
            raise MemoryInsufficient(message, hint="set memory.kv_dtype to auto")
        self._layout = KVLayout(spec.page_size, pages, TOKEN_MAJOR, spec.dtype, bytes_per_token, ALIGNMENT)
        self._device = device
        self._buffer = device.alloc(pages * bytes_per_page, ALIGNMENT)
        shape = (spec.layers, 2, pages, spec.kv_heads, spec.page_size, spec.head_dim)
        self._slab = self._buffer.view(spec.dtype).view(shape)
        views = self._slab.transpose(3, 4)
        self._layers = [(views[i, 0], views[i, 1]) for i in range(spec.layers)]
        self._ledger = PageLedger(pages)

    @property
    def layout(self) -> KVLayout:
        return self._layout

    def alloc(self, count: int) -> list[int]:
        return self._ledger.alloc(count)

    def free(self, pages: Sequence[int]) -> None:
        self._ledger.free(pages)

    def retain(self, pages: Sequence[int]) -> None:
        self._ledger.retain(pages)

    def refcount(self, page: int) -> int:
        return self._ledger.refcount(page)

    def copy_pages(self, src: Sequence[int], dst: Sequence[int]) -> None:
        if len(src) != len(dst):
            message = f"copy_pages: {len(src)} sources, {len(dst)} destinations"
            raise ValueError(message)
        for source, target in zip(src, dst, strict=True):
            self._slab[:, :, target].copy_(self._slab[:, :, source])

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self._layers[index]

    def stats(self) -> KVStats:
        return self._ledger.stats()

    def close(self) -> None:
        self._layers = []
        del self._slab
        self._device.free(self._buffer)
        del self._buffer


__all__ = ["PAGE_SIZES", "KunlunKVPool", "head_major"]
