"""Writing and copying pages in the chip's layout. Knows slots and pages; knows no sequence."""

from __future__ import annotations

import torch

from anychip_kunlun.kv import head_major
from anychip_kunlun.vendor import VendorOps


class Cache:
    def __init__(self, vendor: VendorOps) -> None:
        self._vendor = vendor

    def kv_write(
        self, k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slots: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if len(slots):
            self._vendor.call(
                "reshape_and_cache_flash",
                k.contiguous(),
                v.contiguous(),
                head_major(k_cache),
                head_major(v_cache),
                slots.to(torch.int32),
                BLHD_LAYOUT=False,
            )
        return k_cache, v_cache


def copy_pages(
    k_cache: torch.Tensor, v_cache: torch.Tensor, src: torch.Tensor, dst: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    for cache in (head_major(k_cache), head_major(v_cache)):
        cache.index_copy_(0, dst, cache.index_select(0, src))
    return k_cache, v_cache


__all__ = ["Cache", "copy_pages"]
