"""Faults of KV pools: wrong counts, wrong places, memory that comes or stays. Knows no check."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from anychip_sdk.conformance.reference.faulty.base import FAULTS, Fault
from anychip_sdk.conformance.reference.plugin import AsyncReferencePlugin
from anychip_sdk.device import Device
from anychip_sdk.errors import KVPoolExhausted
from anychip_sdk.hooks import hookimpl
from anychip_sdk.kv import KVPool, PoolSpec, SlabKVPool


def pool_fault(*kills: str, raises: Sequence[str] = ()) -> Callable[[type[SlabKVPool]], type[SlabKVPool]]:
    """Declare a broken pool; its class's name and docstring name the fault."""

    def wrap(broken: type[SlabKVPool]) -> type[SlabKVPool]:
        def create(self: AsyncReferencePlugin, spec: PoolSpec, device: Device) -> KVPool:
            return broken(spec, device)

        create.__name__ = "anychip_create_kv_pool"
        plugin = type(f"{broken.__name__}Plugin", (AsyncReferencePlugin,), {"anychip_create_kv_pool": hookimpl(create)})
        name = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in broken.__name__).strip("_")
        FAULTS[name] = Fault(name, kills, plugin, (broken.__doc__ or "").strip(), tuple(raises))
        return broken

    return wrap


@pool_fault("AC-KV-001")
class HeadsComeFirst(SlabKVPool):
    """Gives tensors with heads before slots, as its memory has them."""

    def __init__(self, spec: PoolSpec, device: Device) -> None:
        super().__init__(spec, device, heads_first=True)

    def tensors(self, group: int, layer: int) -> tuple[torch.Tensor, ...]:
        return tuple(tensor.transpose(1, 2) for tensor in super().tensors(group, layer))


@pool_fault("AC-KV-001")
class BytesAreUnderstated(SlabKVPool):
    """Counts the keys and forgets the values."""

    def __init__(self, spec: PoolSpec, device: Device) -> None:
        super().__init__(spec, device)
        self._layout = replace(self._layout, bytes_per_token=self._layout.bytes_per_token // 2)


@pool_fault("AC-KV-002")
class RetainCountsDouble(SlabKVPool):
    """Takes two references where one was asked for, so that pages never become free."""

    def retain(self, pages: Sequence[int]) -> None:
        super().retain(pages)
        super().retain(pages)


@pool_fault("AC-KV-003")
class DoubleFreeIsAccepted(SlabKVPool):
    """Freeing a free page does nothing and says nothing."""

    def free(self, pages: Sequence[int]) -> None:
        super().free([page for page in pages if self.refcount(page) > 0])


@pool_fault("AC-KV-003")
class RefusalsFreeSome(SlabKVPool):
    """Frees page by page, so that those before the wrong one are gone."""

    def free(self, pages: Sequence[int]) -> None:
        for page in pages:
            super().free([page])


@pool_fault("AC-KV-004")
class PartialAllocationLeaks(SlabKVPool):
    """Takes what there is before it finds that it isn't enough."""

    def alloc(self, count: int) -> list[int]:
        free = self.stats().pages_free
        if count > free:
            super().alloc(free // 2)
        return super().alloc(count)


@pool_fault("AC-KV-004", raises=["IndexError: pop from empty list"])
class ExhaustionIsAnyError(SlabKVPool):
    """Raises what its list raises."""

    def alloc(self, count: int) -> list[int]:
        try:
            return super().alloc(count)
        except KVPoolExhausted as error:
            raise IndexError("pop from empty list") from error


@pool_fault("AC-KV-005")
class PoolGrowsLazily(SlabKVPool):
    """Takes memory from the device when pages are first used."""

    def __init__(self, spec: PoolSpec, device: Device) -> None:
        super().__init__(spec, device)
        self._more: list[torch.Tensor] = []

    def alloc(self, count: int) -> list[int]:
        if len(self._more) < 4:
            self._more.append(self._device.alloc(1 << 16))
        return super().alloc(count)

    def close(self) -> None:
        for buffer in self._more:
            self._device.free(buffer)
        super().close()


@pool_fault("AC-KV-005")
class ScratchPerAllocation(SlabKVPool):
    """Makes a tensor as large as the pages for each allocation, past the device's counting."""

    def alloc(self, count: int) -> list[int]:
        torch.zeros(max(1, count) * self._layout.page_size * self._layout.bytes_per_token, dtype=torch.uint8)
        return super().alloc(count)


@pool_fault("AC-KV-006")
class CopiesForgetTheLastLayer(SlabKVPool):
    """Copies all layers but the last."""

    def copy_pages(self, src: Sequence[int], dst: Sequence[int]) -> None:
        for slab in self._paged:
            slab[:-1, list(dst)] = slab[:-1, list(src)]


@pool_fault("AC-KV-006")
class CopiesSpill(SlabKVPool):
    """Copies one token too many."""

    def copy_pages(self, src: Sequence[int], dst: Sequence[int]) -> None:
        super().copy_pages(src, dst)
        for source, target in zip(src, dst, strict=True):
            if target + 1 < self._layout.pages:
                for slab in self._paged:
                    slab[:, target + 1, 0].copy_(slab[:, source, 0])


@pool_fault("AC-KV-009", raises=["KVPoolExhausted: KV pool: "])
class OnlyRunsAreGiven(SlabKVPool):
    """Needs pages next to each other, so that holes can't be used together."""

    def alloc(self, count: int) -> list[int]:
        pages = super().alloc(count)
        ordered = sorted(pages)
        if ordered and ordered[-1] - ordered[0] != count - 1 and count < self._layout.pages // 2:
            self.free(pages)
            raise KVPoolExhausted(count, self.stats().pages_free)
        return pages


@pool_fault("AC-KV-010")
class ClosingKeepsTheMemory(SlabKVPool):
    """Forgets its buffer without giving it back."""

    def close(self) -> None:
        self._tensors = []
        self._paged = []


@pool_fault("AC-KV-011")
class LayersShareMemory(SlabKVPool):
    """Every second layer lies where the one before it lies."""

    def __init__(self, spec: PoolSpec, device: Device) -> None:
        super().__init__(spec, device)
        self._tensors = [[group[layer // 2 * 2] for layer in range(len(group))] for group in self._tensors]


@pool_fault("AC-KV-012")
class FreeingSharedPagesFreesThem(SlabKVPool):
    """The first holder that lets go takes the page from all."""

    def free(self, pages: Sequence[int]) -> None:
        for page in pages:
            super().free([page] * max(1, self.refcount(page)))


@pool_fault("AC-KV-013")
class TheLimitIsIgnored(SlabKVPool):
    """Takes the whole budget, whatever pages_max says."""

    def __init__(self, spec: PoolSpec, device: Device) -> None:
        super().__init__(replace(spec, pages_max=None), device)


@pool_fault("AC-KV-014")
class AlignmentIsOverstated(SlabKVPool):
    """Promises caches at multiples of a mebibyte."""

    def __init__(self, spec: PoolSpec, device: Device) -> None:
        super().__init__(spec, device)
        self._layout = replace(self._layout, alignment=1 << 20)


__all__ = [
    "AlignmentIsOverstated",
    "BytesAreUnderstated",
    "ClosingKeepsTheMemory",
    "CopiesForgetTheLastLayer",
    "CopiesSpill",
    "DoubleFreeIsAccepted",
    "ExhaustionIsAnyError",
    "FreeingSharedPagesFreesThem",
    "HeadsComeFirst",
    "LayersShareMemory",
    "OnlyRunsAreGiven",
    "PartialAllocationLeaks",
    "PoolGrowsLazily",
    "RefusalsFreeSome",
    "RetainCountsDouble",
    "ScratchPerAllocation",
    "TheLimitIsIgnored",
    "pool_fault",
]
