"""The pool of KV pages as the chip's attention wants it: heads before tokens. Knows pages; knows no token.

Each of a group's tensors is [layers, pages, kv_heads, page_size, head_dim] in memory, all in one allocation. `tensors`
gives views with tokens before heads, so that references run on them; kernels turn them back with `head_major`, which
moves nothing.
"""

from __future__ import annotations

import torch

from anychip_sdk.device import Device
from anychip_sdk.errors import MemoryInsufficient
from anychip_sdk.kv import PoolSpec, SlabKVPool

#: tokens of a page that the attention ops take
PAGE_SIZES = (16, 64, 128)
ALIGNMENT = 512


def head_major(cache: torch.Tensor) -> torch.Tensor:
    """A cache of the pool as the ops want it: [pages, kv_heads, page_size, head_dim], contiguous."""
    return cache.transpose(1, 2)


class KunlunKVPool(SlabKVPool):
    """The SDK's slab with heads before tokens, aligned as the ops want it."""

    def __init__(self, spec: PoolSpec, device: Device) -> None:
        if not spec.dtype.is_floating_point:
            message = f"KV pool: keys and values in {spec.dtype} need scales, which this backend does not keep"
            raise MemoryInsufficient(message, hint="set memory.kv_dtype to auto")
        super().__init__(spec, device, heads_first=True, alignment=ALIGNMENT)


__all__ = ["PAGE_SIZES", "KunlunKVPool", "head_major"]
