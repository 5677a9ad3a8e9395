"""Writes into the paged cache. Knows slots and the head-major layout; knows no attention."""

from __future__ import annotations

import torch

from anychip_kunlun.emulator.contract import FLOATS, Contract, vendor_op
from anychip_kunlun.emulator.machine import Machine

INT8_MAX = 127


class CacheOps:
    """Keys and values [tokens, kv_heads, head_dim] go to caches [blocks, kv_heads, block_size, head_dim].

    With BLHD_LAYOUT the caches are [blocks, block_size, kv_heads, head_dim] instead.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    @vendor_op
    def reshape_and_cache(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
        k_max: torch.Tensor | None = None,
        v_max: torch.Tensor | None = None,
        quant_mode: int = 0,
        BLHD_LAYOUT: bool = False,
    ) -> int:
        """Stores int8 by the absmax in k_max and v_max: of each channel with quant_mode 1, else of each head.

        Without them the values are stored as they are.
        """
        contract = Contract("reshape_and_cache")
        contract.need(quant_mode in (0, 1), f"quant_mode {quant_mode}")
        contract.need((k_max is None) == (v_max is None), "k_max and v_max come together")
        contract.need(not quant_mode or k_max is not None, "quant_mode 1 needs k_max and v_max")
        contract.dtype((torch.float32,), k_max=k_max, v_max=v_max)
        contract.contiguous(k_max=k_max, v_max=v_max)
        contract.shape((key.shape[1] * (key.shape[2] if quant_mode else 1),), k_max=k_max, v_max=v_max)
        self._write(contract, (key, value), (k_cache, v_cache), slot_mapping, (k_max, v_max), BLHD_LAYOUT)
        return 0

    @vendor_op
    def reshape_and_cache_flash(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
        BLHD_LAYOUT: bool = False,
    ) -> int:
        contract = Contract("reshape_and_cache_flash")
        self._write(contract, (key, value), (k_cache, v_cache), slot_mapping, (None, None), BLHD_LAYOUT)
        return 0

    def _write(
        self,
        contract: Contract,
        values: tuple[torch.Tensor, torch.Tensor],
        caches: tuple[torch.Tensor, torch.Tensor],
        slots: torch.Tensor,
        scales: tuple[torch.Tensor | None, torch.Tensor | None],
        token_first: bool,
    ) -> None:
        key, value = values
        contract.contiguous(key=key, value=value, k_cache=caches[0], v_cache=caches[1], slot_mapping=slots)
        contract.dtype(FLOATS, key=key)
        contract.dtype((key.dtype,), value=value)
        contract.dtype((torch.int32,), slot_mapping=slots)
        stored = key.dtype if scales[0] is None else torch.int8
        contract.dtype((stored,), k_cache=caches[0], v_cache=caches[1])
        contract.need(key.dim() == 3 and caches[0].dim() == 4, "key is no [tokens, heads, size] or k_cache not paged")
        tokens, heads, head_dim = key.shape
        contract.shape(key.shape, value=value)
        contract.shape((tokens,), slot_mapping=slots)
        contract.shape(caches[0].shape, v_cache=caches[1])
        blocks, block_size = caches[0].shape[0], caches[0].shape[1 if token_first else 2]
        inner = (block_size, heads) if token_first else (heads, block_size)
        contract.shape((blocks, *inner, head_dim), k_cache=caches[0])

        def run() -> None:
            places = slots.long()
            kept = places >= 0
            block, offset = places[kept] // block_size, places[kept] % block_size
            for cache, new, scale in zip(caches, values, scales, strict=True):
                at = cache.transpose(1, 2) if not token_first else cache
                at[block, offset] = _stored(new[kept], scale)

        reads = (key, value, slots, *(one for one in scales if one is not None))
        self.machine.launch(contract.op, reads, caches, run)


def _stored(values: torch.Tensor, absmax: torch.Tensor | None) -> torch.Tensor:
    if absmax is None:
        return values
    scale = absmax.view(values.shape[1], -1) / INT8_MAX
    return (values.float() / scale).round().clamp(-INT8_MAX, INT8_MAX).to(torch.int8)


__all__ = ["INT8_MAX", "CacheOps"]
