"""KV pools that lose, share or misplace pages. Knows no check."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from anychip_sdk.conformance.mutants.base import mutant
from anychip_sdk.device import Device
from anychip_sdk.kv import PoolSpec, SlabKVPool


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
            for slab in self._paged:
                slab[:, page : page + 2] = 0
        return pages


@mutant("AC-KV-005")
class SharingMakesACopy(SlabKVPool):
    """Retaining a page copies it."""

    def retain(self, pages: Sequence[int]) -> None:
        super().retain(pages)
        self._kept = [slab[:, list(pages)].clone() for slab in self._paged]


@mutant("AC-KV-006")
class CopiesForgetValues(SlabKVPool):
    """copy_pages copies keys only."""

    def copy_pages(self, src: Sequence[int], dst: Sequence[int]) -> None:
        self._paged[0][:, list(dst)] = self._paged[0][:, list(src)]


@mutant("AC-KV-011")
class LayersOverlap(SlabKVPool):
    """The last slot of each layer's keys is the first of its values."""

    def __init__(self, spec: PoolSpec, device: Device) -> None:
        super().__init__(spec, device)
        self._tensors = [[(keys, _earlier(values)) for keys, values in group] for group in self._tensors]


def _earlier(cache: torch.Tensor) -> torch.Tensor:
    """The cache as if it began one token earlier."""
    offset = cache.storage_offset() - math.prod(cache.shape[2:])
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

    def __init__(self, spec: PoolSpec, device: Device) -> None:
        limit = max(1, spec.budget_bytes // (spec.bytes_per_token * spec.page_size) // 10)
        super().__init__(replace(spec, pages_max=min(limit, spec.pages_max or limit)), device)


@mutant("AC-KV-014")
class CachesMove(SlabKVPool):
    """Each look at a layer gives a new copy of the keys."""

    def tensors(self, group: int, layer: int) -> tuple[torch.Tensor, ...]:
        keys, *others = super().tensors(group, layer)
        return keys.clone(), *others


@mutant("AC-KV-015")
class CopiesTheFirstGroup(SlabKVPool):
    """copy_pages copies the first group of states only."""

    def copy_pages(self, src: Sequence[int], dst: Sequence[int]) -> None:
        for slab in self._paged[: len(self.groups[0].spec.tensors)]:
            slab[:, list(dst)] = slab[:, list(src)]


@mutant("AC-KV-015")
class GroupsShareMemory(SlabKVPool):
    """A group with as large entries as another one's lies where that one lies."""

    def __init__(self, spec: PoolSpec, device: Device) -> None:
        super().__init__(spec, device)
        if len(self._tensors) > 1:
            self._tensors[1] = [*self._tensors[0], *self._tensors[1][len(self._tensors[0]) :]]


@mutant("AC-KV-015")
class BytesOfOneGroup(SlabKVPool):
    """Counts the first group and forgets the others."""

    def __init__(self, spec: PoolSpec, device: Device) -> None:
        super().__init__(spec, device)
        self._layout = replace(self._layout, bytes_per_token=spec.groups[0].nbytes(spec.dtype))


@mutant("AC-KV-016")
class SnapshotsForgetTheLastLayer(SlabKVPool):
    """copy_slots copies all layers but the last."""

    def copy_slots(self, src: Sequence[int], dst: Sequence[int]) -> None:
        for tensor in list(self._slot_tensors())[:-1]:
            tensor[list(dst)] = tensor[list(src)]


@mutant("AC-KV-016")
class ClearingIsForgotten(SlabKVPool):
    """clear_slots does nothing: a new sequence goes on from where another one ended."""

    def clear_slots(self, slots: Sequence[int]) -> None:
        return


@mutant("AC-KV-016")
class SlotsBeginWithOnes(SlabKVPool):
    """States in slots are ones at first."""

    def __init__(self, spec: PoolSpec, device: Device) -> None:
        super().__init__(spec, device)
        for tensor in self._slot_tensors():
            tensor.fill_(1)


__all__: list[str] = []
