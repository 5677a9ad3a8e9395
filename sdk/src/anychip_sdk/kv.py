"""The pool of KV pages: one device allocation, the rest in user space. Knows pages; knows no token and no request."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from anychip_sdk.errors import KVPoolExhausted, MemoryInsufficient

if TYPE_CHECKING:
    from anychip_sdk.device import Device

TOKEN_MAJOR = ("page", "slot", "head", "dim")


@dataclass(frozen=True)
class KVSpec:
    """What the model needs and what the plan gives."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    budget_bytes: int  #: the most that the pool may take
    page_size: int  #: tokens per page
    pages_max: int | None = None  #: a further limit; None: as many as the budget holds


@dataclass(frozen=True)
class KVLayout:
    """How the pool's memory is laid out; kernels know it, the core reads page_size and pages only."""

    page_size: int
    pages: int
    axes: tuple[str, ...]
    dtype: torch.dtype
    bytes_per_token: int  #: over all layers, keys and values
    alignment: int = 64


@dataclass(frozen=True)
class KVStats:
    pages_total: int
    pages_free: int
    pages_used: int
    pages_shared: int  #: with more than one reference


class KVPool(ABC):
    """Pages of keys and values, reference counted. Page numbers are 0 .. pages-1.

    Not thread safe: the engine's step loop is its only user. After construction no method allocates device memory.
    """

    @property
    @abstractmethod
    def layout(self) -> KVLayout: ...

    @abstractmethod
    def alloc(self, count: int) -> list[int]:
        """`count` pages, each with one reference; all or nothing.

        Raises:
            KVPoolExhausted: fewer are free; nothing was taken.
        """

    @abstractmethod
    def free(self, pages: Sequence[int]) -> None:
        """Drop one reference of each; a page without references is free again.

        Raises:
            ValueError: a page is free already; nothing was changed.
        """

    @abstractmethod
    def retain(self, pages: Sequence[int]) -> None:
        """Add one reference to each.

        Raises:
            ValueError: a page is free; nothing was changed.
        """

    @abstractmethod
    def refcount(self, page: int) -> int: ...

    @abstractmethod
    def copy_pages(self, src: Sequence[int], dst: Sequence[int]) -> None:
        """Copy the content of src[i] to dst[i], in all layers (copy on write)."""

    @abstractmethod
    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The key and value caches of a layer, with the layout's axes; the same tensors on each call.

        With the axes TOKEN_MAJOR the references run on them, whatever order the strides say the memory is in.
        """

    @abstractmethod
    def stats(self) -> KVStats: ...

    def close(self) -> None:
        """(optional) Give the memory back. Default: dropping the pool is enough."""


class PageLedger:
    """Who holds which page: a free list and a count per page. The book-keeping that any pool needs."""

    def __init__(self, pages: int) -> None:
        self._free = list(range(pages - 1, -1, -1))  # popped from the end: low numbers first
        self._counts = [0] * pages
        self._shared = 0

    @property
    def pages_free(self) -> int:
        return len(self._free)

    def alloc(self, count: int) -> list[int]:
        if count < 0:
            message = f"cannot allocate {count} pages"
            raise ValueError(message)
        if count > len(self._free):
            raise KVPoolExhausted(count, len(self._free))
        if count == 0:
            return []
        pages = self._free[-count:][::-1]
        del self._free[-count:]
        for page in pages:
            self._counts[page] = 1
        return pages

    def free(self, pages: Sequence[int]) -> None:
        self._check_held(pages, "free")
        for page in pages:
            count = self._counts[page] - 1
            self._counts[page] = count
            if count == 1:
                self._shared -= 1
            elif count == 0:
                self._free.append(page)

    def retain(self, pages: Sequence[int]) -> None:
        self._check_held(pages, "retain")
        for page in pages:
            count = self._counts[page] + 1
            self._counts[page] = count
            if count == 2:
                self._shared += 1

    def refcount(self, page: int) -> int:
        self._check_range(page)
        return self._counts[page]

    def stats(self) -> KVStats:
        total, free = len(self._counts), len(self._free)
        return KVStats(total, free, total - free, self._shared)

    def _check_range(self, page: int) -> None:
        if not 0 <= page < len(self._counts):
            message = f"page {page} is not one of 0..{len(self._counts) - 1}"
            raise ValueError(message)

    def _check_held(self, pages: Sequence[int], verb: str) -> None:
        wanted: dict[int, int] = {}
        for page in pages:
            self._check_range(page)
            wanted[page] = wanted.get(page, 0) + 1
        for page, times in wanted.items():
            held = self._counts[page]
            if held == 0 or (verb == "free" and held < times):
                message = f"cannot {verb} page {page} {times} times: it has {held} references"
                raise ValueError(message)


class LedgerKVPool(KVPool):
    """A pool whose pages a ledger keeps: what is left to do is where the keys and values lie."""

    def __init__(self, layout: KVLayout) -> None:
        self._layout = layout
        self._ledger = PageLedger(layout.pages)

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

    def stats(self) -> KVStats:
        return self._ledger.stats()


class SlabKVPool(LedgerKVPool):
    """The default pool: one slab, [layers, 2, pages, page_size, kv_heads, head_dim], in ordinary device memory.

    Args:
        heads_first: a page's heads lie before its tokens in memory; `layer` gives the same axes either way.
        alignment: of the slab, in bytes.
    """

    def __init__(
        self, spec: KVSpec, device: Device, *, heads_first: bool = False, alignment: int = KVLayout.alignment
    ) -> None:
        itemsize = spec.dtype.itemsize
        bytes_per_token = 2 * spec.layers * spec.kv_heads * spec.head_dim * itemsize
        bytes_per_page = bytes_per_token * spec.page_size
        pages = spec.budget_bytes // bytes_per_page
        if spec.pages_max is not None:
            pages = min(pages, spec.pages_max)
        if pages < 1:
            message = f"KV pool: one page takes {bytes_per_page} bytes, the budget is {spec.budget_bytes}"
            raise MemoryInsufficient(message)
        super().__init__(KVLayout(spec.page_size, pages, TOKEN_MAJOR, spec.dtype, bytes_per_token, alignment))
        self._device = device
        self._buffer = device.alloc(pages * bytes_per_page, alignment)
        page = (spec.kv_heads, spec.page_size) if heads_first else (spec.page_size, spec.kv_heads)
        self._slab = self._buffer.view(spec.dtype).view(spec.layers, 2, pages, *page, spec.head_dim)
        token_major = self._slab.transpose(3, 4) if heads_first else self._slab
        self._layers = [(token_major[i, 0], token_major[i, 1]) for i in range(spec.layers)]

    def copy_pages(self, src: Sequence[int], dst: Sequence[int]) -> None:
        if len(src) != len(dst):
            message = f"copy_pages: {len(src)} sources, {len(dst)} destinations"
            raise ValueError(message)
        for source, target in zip(src, dst, strict=True):
            self._slab[:, :, target].copy_(self._slab[:, :, source])

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self._layers[index]

    def close(self) -> None:
        self._layers = []
        del self._slab
        self._device.free(self._buffer)
        del self._buffer


__all__ = ["TOKEN_MAJOR", "KVLayout", "KVPool", "KVSpec", "KVStats", "LedgerKVPool", "PageLedger", "SlabKVPool"]
