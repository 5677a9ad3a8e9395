"""Writing and copying keys and values in the token-major cache. Knows slots and pages; knows no sequence."""

from __future__ import annotations

import torch


def kv_write(
    k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slots: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """index_copy_ takes strided sources as they are; index_put_ was no faster."""
    for new, cache in ((k, k_cache), (v, v_cache)):
        source = new if new.dtype == cache.dtype else new.to(cache.dtype)
        cache.view(-1, *cache.shape[2:]).index_copy_(0, slots, source)
    return k_cache, v_cache


def copy_pages(
    k_cache: torch.Tensor, v_cache: torch.Tensor, src: torch.Tensor, dst: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    for cache in (k_cache, v_cache):
        cache.index_copy_(0, dst, cache.index_select(0, src))
    return k_cache, v_cache


__all__ = ["copy_pages", "kv_write"]
