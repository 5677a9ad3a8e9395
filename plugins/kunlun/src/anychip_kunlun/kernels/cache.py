"""Writing keys and values in the chip's layout. Knows slots and pages; knows no sequence."""

from __future__ import annotations

import torch

from anychip_kunlun.kv import head_major
from anychip_kunlun.vendor import VendorOps


class Cache:
    def __init__(self, vendor: VendorOps) -> None:
        self._vendor = vendor

    def kv_write(
        self,
        k: torch.Tensor,
        v: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        slots: torch.Tensor,
        group: int = 0,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`slots` are int32 [tokens], prepared of the step."""
        if len(slots):
            self._vendor.call(
                "reshape_and_cache_flash",
                k.contiguous(),
                v.contiguous(),
                head_major(k_cache),
                head_major(v_cache),
                slots,
                BLHD_LAYOUT=False,
            )
        return k_cache, v_cache


__all__ = ["Cache"]
