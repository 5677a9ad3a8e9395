"""Keys and values in pages, by slot: writing and gathering with torch. Knows slots and pages; knows no sequence."""

from __future__ import annotations

import torch

from anychip_sdk.step import Step


def kv_write(
    k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, step: Step, group: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    return write(k, v, k_cache, v_cache, step.paged(group).slots)


def write(
    k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slots: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """index_copy_ takes strided sources as they are; index_put_ was no faster."""
    for new, cache in ((k, k_cache), (v, v_cache)):
        source = new if new.dtype == cache.dtype else new.to(cache.dtype)
        if are_slots_even(cache):
            cache.view(-1, *cache.shape[2:]).index_copy_(0, slots, source)
        else:
            cache[slots // cache.shape[1], slots % cache.shape[1]] = source
    return k_cache, v_cache


def are_slots_even(cache: torch.Tensor) -> bool:
    """Whether [pages, page_size, ...] is a view of [slots, ...]; a pool's memory may be in another order."""
    return cache.stride(0) == cache.shape[1] * cache.stride(1)


__all__ = ["are_slots_even", "kv_write", "write"]
