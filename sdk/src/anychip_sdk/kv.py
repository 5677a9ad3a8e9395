"""The pool of a model's states: pages and slots in one device allocation, the rest in user space.

Knows pages, slots and groups of states; knows no token and no request.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from anychip_sdk.errors import KVPoolExhausted, MemoryInsufficient
from anychip_sdk.state import StateGroup, StateTensor, bytes_per_slot, bytes_per_token

if TYPE_CHECKING:
    from anychip_sdk.device import Device


@dataclass(frozen=True)
class PoolSpec:
    """What the model keeps and what the plan gives.

    Attributes:
        groups: the model's states.
        dtype: of state tensors that name none.
        budget_bytes: the most that the pool may take.
        page_size: tokens per page.
        pages_max: a further limit; None: as many as the budget holds.
        slots: for sequences and for snapshots of them; 0 where no group keeps slots.
    """

    groups: tuple[StateGroup, ...]
    dtype: torch.dtype
    budget_bytes: int
    page_size: int
    pages_max: int | None = None
    slots: int = 0

    @property
    def bytes_per_token(self) -> int:
        """Over all paged groups and their layers."""
        return bytes_per_token(self.groups, self.dtype)

    @property
    def bytes_per_slot(self) -> int:
        """Over all slot groups and their layers."""
        return bytes_per_slot(self.groups, self.dtype)

    def pages(self) -> int:
        """As many as the budget holds beside the slots, and `pages_max` allows.

        Raises:
            MemoryInsufficient: not even one.
        """
        page_bytes = self.bytes_per_token * self.page_size
        left = self.budget_bytes - self.slots * self.bytes_per_slot
        most = left // page_bytes if page_bytes else self.pages_max or 1
        pages = most if self.pages_max is None else min(most, self.pages_max)
        if pages < 1:
            slots = f" and {self.slots} slots take {self.slots * self.bytes_per_slot}" if self.slots else ""
            message = f"KV pool: one page takes {page_bytes} bytes{slots}, the budget is {self.budget_bytes}"
            raise MemoryInsufficient(message)
        return pages


@dataclass(frozen=True)
class KVLayout:
    """What a pool has room for."""

    page_size: int
    pages: int
    slots: int
    dtype: torch.dtype  #: of state tensors that name none
    bytes_per_token: int  #: over all paged groups and their layers
    bytes_per_slot: int  #: over all slot groups and their layers
    alignment: int = 64


@dataclass(frozen=True)
class KVStats:
    pages_total: int
    pages_free: int
    pages_used: int
    pages_shared: int  #: with more than one reference


class KVPool(ABC):
    """Pages of tokens' entries, reference counted, and slots of sequences' states. Both are numbered from 0.

    A page number means the same tokens in each paged group, a slot number the same sequence in each slot group. Who has
    which slot is the engine's affair.

    Not thread safe: the engine's step loop is its only user. After construction no method allocates device memory.
    """

    @property
    @abstractmethod
    def groups(self) -> tuple[StateGroup, ...]:
        """As the spec had them."""

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
    def tensors(self, group: int, layer: int) -> tuple[torch.Tensor, ...]:
        """A layer's state tensors in the spec's order; the same tensors on each call.

        Paged: [pages, page_size, *shape]; slot: [slots, *shape]; with any strides, so that memory may be in another
        order. All zeros at first.
        """

    @abstractmethod
    def copy_pages(self, src: Sequence[int], dst: Sequence[int]) -> None:
        """Copy the content of page src[i] to page dst[i], in all paged groups and layers (copy on write).

        Queued behind the work queued so far, before later work; `dst` are all different and none of `src`.
        """

    def copy_slots(self, src: Sequence[int], dst: Sequence[int]) -> None:
        """(optional) The same for slots of all slot groups: snapshots and forks. Default: by `tensors`."""
        check_pairs("copy_slots", src, dst)
        for tensor in self._slot_tensors():
            for source, target in zip(src, dst, strict=True):
                tensor[target].copy_(tensor[source])

    def clear_slots(self, slots: Sequence[int]) -> None:
        """(optional) Write zeros to these slots of all slot groups. Default: by `tensors`."""
        for tensor in self._slot_tensors():
            for slot in slots:
                tensor[slot].zero_()

    def _slot_tensors(self) -> Iterator[torch.Tensor]:
        for index, group in enumerate(self.groups):
            if group.spec.kind == "slot":
                for layer in range(group.layers):
                    yield from self.tensors(index, layer)

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
    """A pool whose pages a ledger keeps: what is left to do is where the states lie."""

    def __init__(self, spec: PoolSpec, alignment: int = KVLayout.alignment) -> None:
        self._groups = spec.groups
        self._layout = KVLayout(
            spec.page_size,
            spec.pages(),
            spec.slots,
            spec.dtype,
            spec.bytes_per_token,
            spec.bytes_per_slot,
            alignment,
        )
        self._ledger = PageLedger(self._layout.pages)

    @property
    def groups(self) -> tuple[StateGroup, ...]:
        return self._groups

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
    """The default pool: one allocation in ordinary device memory; a state tensor's layers lie one after the other.

    Args:
        heads_first: a page's heads (the first dimension of a token's entry) lie before its tokens in memory; `tensors`
            gives the same dimensions either way.
        alignment: of the memory, in bytes.
    """

    def __init__(
        self, spec: PoolSpec, device: Device, *, heads_first: bool = False, alignment: int = KVLayout.alignment
    ) -> None:
        super().__init__(spec, alignment)
        self._device = device
        parts = [(group, tensor) for group in spec.groups for tensor in group.spec.tensors]
        sizes = [self._entries(group) * group.layers * tensor.nbytes(spec.dtype) for group, tensor in parts]
        self._buffer = device.alloc(sum(sizes), alignment)
        slabs: dict[int, torch.Tensor] = {}
        start = 0
        # wide elements first, so that each begins at a multiple of its size
        for index in sorted(range(len(parts)), key=lambda i: -(parts[i][1].dtype or spec.dtype).itemsize):
            group, tensor = parts[index]
            flat = self._buffer[start : start + sizes[index]].view(tensor.dtype or spec.dtype)
            slabs[index] = self._shaped(flat, group, tensor, heads_first)
            start += sizes[index]
        ordered = [slabs[index] for index in range(len(parts))]
        self._tensors = _by_layer(spec.groups, ordered)
        self._paged = [slab for slab, (group, _) in zip(ordered, parts, strict=True) if group.spec.kind == "paged"]

    def _entries(self, group: StateGroup) -> int:
        """Tokens or sequences that there is room for."""
        layout = self._layout
        return layout.pages * layout.page_size if group.spec.kind == "paged" else layout.slots

    def _shaped(self, flat: torch.Tensor, group: StateGroup, tensor: StateTensor, heads_first: bool) -> torch.Tensor:
        """[layers, pages, page_size, *shape] or [layers, slots, *shape]."""
        layout = self._layout
        if group.spec.kind == "slot":
            return flat.view(group.layers, layout.slots, *tensor.shape)
        if heads_first and len(tensor.shape) > 1:
            heads, *rest = tensor.shape
            return flat.view(group.layers, layout.pages, heads, layout.page_size, *rest).transpose(2, 3)
        return flat.view(group.layers, layout.pages, layout.page_size, *tensor.shape)

    def tensors(self, group: int, layer: int) -> tuple[torch.Tensor, ...]:
        return self._tensors[group][layer]

    def copy_pages(self, src: Sequence[int], dst: Sequence[int]) -> None:
        check_pairs("copy_pages", src, dst)
        for slab in self._paged:
            for source, target in zip(src, dst, strict=True):
                slab[:, target].copy_(slab[:, source])

    def close(self) -> None:
        self._tensors = []
        self._paged = []
        self._device.free(self._buffer)
        del self._buffer


def _by_layer(groups: Sequence[StateGroup], slabs: Sequence[torch.Tensor]) -> list[list[tuple[torch.Tensor, ...]]]:
    """group -> layer -> its tensors."""
    left = iter(slabs)
    found = []
    for group in groups:
        own = [next(left) for _ in group.spec.tensors]
        found.append([tuple(slab[layer] for slab in own) for layer in range(group.layers)])
    return found


def check_pairs(what: str, src: Sequence[int], dst: Sequence[int]) -> None:
    """Raise ValueError unless there is a destination for each source."""
    if len(src) != len(dst):
        message = f"{what}: {len(src)} sources, {len(dst)} destinations"
        raise ValueError(message)


__all__ = ["KVLayout", "KVPool", "KVStats", "LedgerKVPool", "PageLedger", "PoolSpec", "SlabKVPool", "check_pairs"]
