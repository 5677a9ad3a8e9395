"""Writing and copying keys and values in the paged cache. Knows the axes of the cache, not its strides."""

from __future__ import annotations

import torch

from anychip_sdk.ops.base import EXACT, Arg, op

K_CACHE = Arg("k_cache", "[pages, page_size, kv_heads, head_dim]", mutated=True)
V_CACHE = Arg("v_cache", "[pages, page_size, kv_heads, head_dim]", mutated=True)
CACHES = (
    Arg("k_cache", "[pages, page_size, kv_heads, head_dim]"),
    Arg("v_cache", "[pages, page_size, kv_heads, head_dim]"),
)


@op(
    Arg("k", "[tokens, kv_heads, head_dim]"),
    Arg("v", "[tokens, kv_heads, head_dim]", doc="may be a strided view"),
    K_CACHE,
    V_CACHE,
    Arg("slots", "[tokens]", "int64", doc="page * page_size + offset; all different"),
    returns=CACHES,
    error=EXACT,
)
def kv_write(
    k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slots: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Put each token's key and value into its slot; returns the caches, so that a reader depends on the write."""
    page_size = k_cache.shape[1]
    at = (slots // page_size, slots % page_size)  # a pool's memory may be in another order: nothing is flattened
    k_cache[at] = k.to(k_cache.dtype)
    v_cache[at] = v.to(v_cache.dtype)
    return k_cache, v_cache


@op(
    K_CACHE,
    V_CACHE,
    Arg("src", "[copies]", "int64"),
    Arg("dst", "[copies]", "int64", doc="all different, none of them in src"),
    returns=CACHES,
    error=EXACT,
)
def copy_pages(
    k_cache: torch.Tensor, v_cache: torch.Tensor, src: torch.Tensor, dst: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Copy whole pages within one layer's caches (copy on write)."""
    k_cache[dst] = k_cache[src]
    v_cache[dst] = v_cache[src]
    return k_cache, v_cache
