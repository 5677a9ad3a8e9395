"""The KV pool in host memory, fetched from the system before requests come."""

from __future__ import annotations

import mmap
from concurrent.futures import ThreadPoolExecutor

import torch

from anychip_sdk.device import Device
from anychip_sdk.kv import KVPool, PoolSpec, SlabKVPool

TOUCHED_BYTES = 4 << 30  #: fetching more would make loading slow, so larger pools are fetched as they are used


def create(spec: PoolSpec, device: Device) -> KVPool:
    """The default pool, every page of its memory written to once if it has at most TOUCHED_BYTES.

    What the system hands out on first use would otherwise cost requests their first steps. Several threads write, as a
    virtual machine may have to fetch each page from its host: 1.5 s a GiB on one.
    """
    pool = SlabKVPool(spec, device)
    if spec.budget_bytes <= TOUCHED_BYTES:
        layers = [(group, layer) for group, states in enumerate(spec.groups) for layer in range(states.layers)]
        with ThreadPoolExecutor(torch.get_num_threads()) as threads:
            list(threads.map(_touch, [tensor for place in layers for tensor in pool.tensors(*place)]))
    return pool


def _touch(tensor: torch.Tensor) -> None:
    tensor.view(-1)[:: max(1, mmap.PAGESIZE // tensor.itemsize)] = 0


__all__ = ["create"]
