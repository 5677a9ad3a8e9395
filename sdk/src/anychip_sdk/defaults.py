"""The plugin of defaults, registered behind every backend's own: what a vendor doesn't implement. Knows no vendor."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from anychip_sdk.device import Device
from anychip_sdk.fusion import Fusion
from anychip_sdk.hooks import PreparedWeight, hookimpl
from anychip_sdk.kv import KVPool, PoolSpec, SlabKVPool
from anychip_sdk.ops import CATALOGUE
from anychip_sdk.registry import Registrar

ALL_FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@hookimpl(trylast=True)
def anychip_register_ops(registry: Registrar) -> None:
    for name, op in CATALOGUE.items():
        registry.register(name, op.reference, dtypes=ALL_FLOATS, name="reference", version=op.version)


@hookimpl(trylast=True)
def anychip_create_kv_pool(spec: PoolSpec, device: Device) -> KVPool:
    return SlabKVPool(spec, device)


@hookimpl(trylast=True)
def anychip_fusions() -> Sequence[Fusion]:
    return ()


@hookimpl(trylast=True)
def anychip_prepare_weight(tensor: torch.Tensor) -> PreparedWeight:
    return PreparedWeight(tensor, tensor.nbytes)


__all__ = [
    "anychip_create_kv_pool",
    "anychip_fusions",
    "anychip_prepare_weight",
    "anychip_register_ops",
]
