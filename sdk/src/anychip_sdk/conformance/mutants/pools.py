"""KV pools that lose, share or misplace pages. Knows no check."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from anychip_sdk.conformance.mutants.base import mutant
from anychip_sdk.device import Device
from anychip_sdk.kv import KVSpec, SlabKVPool


@mutant("AC-KV-002")
class RetainCountsOnce(SlabKVPool):
    """A page that several holders retain in one call gets one reference."""

    def retain(self, pages: Sequence[int]) -> None:
        super().retain(list(dict.fromkeys(pages)))


@mutant("AC-KV-002")
class AllocationClearsNeighbours(SlabKVPool):
    """Clearing a new page also clears the one behind it."""

    def alloc(self, count: int) -> list[int]:
        pages = super().alloc(count)
        for page in pages:
            self._slab[:, :, page : page + 2] = 0
        return pages


@mutant("AC-KV-005")
class SharingMakesACopy(SlabKVPool):
    """Retaining a page copies it."""

    def retain(self, pages: Sequence[int]) -> None:
        super().retain(pages)
        self._kept = self._slab[:, :, list(pages)].clone()


@mutant("AC-KV-006")
class CopiesForgetValues(SlabKVPool):
    """copy_pages copies keys only."""

    def copy_pages(self, src: Sequence[int], dst: Sequence[int]) -> None:
        self._slab[:, 0, list(dst)] = self._slab[:, 0, list(src)]


@mutant("AC-KV-011")
class LayersOverlap(SlabKVPool):
    """The last slot of each layer's keys is the first of its values."""

    def __init__(self, spec: KVSpec, device: Device) -> None:
        super().__init__(spec, device)
        self._layers = [(keys, _earlier(values)) for keys, values in self._layers]


def _earlier(cache: torch.Tensor) -> torch.Tensor:
    """The cache as if it began one token earlier."""
    offset = cache.storage_offset() - cache.shape[2] * cache.shape[3]
    return cache.as_strided(cache.shape, cache.stride(), max(0, offset))


@mutant("AC-KV-012")
class CopiesShareTheirOrigin(SlabKVPool):
    """A copied page is held by its copy as well, so that it never comes back."""

    def copy_pages(self, src: Sequence[int], dst: Sequence[int]) -> None:
        super().copy_pages(src, dst)
        self.retain(src)


@mutant("AC-KV-013")
class UsesATenthOfItsBudget(SlabKVPool):
    """Nine tenths of the budget stay unused."""

    def __init__(self, spec: KVSpec, device: Device) -> None:
        page_bytes = 2 * spec.layers * spec.kv_heads * spec.head_dim * spec.dtype.itemsize * spec.page_size
        limit = max(1, spec.budget_bytes // page_bytes // 10)
        super().__init__(replace(spec, pages_max=min(limit, spec.pages_max or limit)), device)


@mutant("AC-KV-014")
class CachesMove(SlabKVPool):
    """Each call of layer gives a new copy of the keys."""

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = super().layer(index)
        return keys.clone(), values


__all__: list[str] = []
