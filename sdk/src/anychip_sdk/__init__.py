"""What a chip vendor implements to serve language models with anychip.

Knows nothing of recipes, models and servers. Names are imported on first use, so that a program that needs only
`anychip_sdk.errors` doesn't wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anychip_sdk.backend import Backend, load_backend
    from anychip_sdk.device import Capabilities, Device, DeviceConfig, DeviceInfo, Event, MemoryInfo, Stream
    from anychip_sdk.finding import Finding
    from anychip_sdk.fusion import Fusion
    from anychip_sdk.hooks import API_VERSION, CompileContext, PreparedWeight, hookimpl
    from anychip_sdk.info import BackendInfo, Requirements
    from anychip_sdk.kv import KVLayout, KVPool, KVSpec, SlabKVPool
    from anychip_sdk.ops.base import CATALOGUE, AttentionBatch
    from anychip_sdk.registry import OpKey, OpRegistry, Registrar, at_least, at_most, multiple_of, one_of
    from anychip_sdk.speeds import KernelSpeed, Speeds

_HOMES = {
    "API_VERSION": "anychip_sdk.hooks",
    "AttentionBatch": "anychip_sdk.ops.base",
    "Backend": "anychip_sdk.backend",
    "BackendInfo": "anychip_sdk.info",
    "CATALOGUE": "anychip_sdk.ops.base",
    "Capabilities": "anychip_sdk.device",
    "CompileContext": "anychip_sdk.hooks",
    "Device": "anychip_sdk.device",
    "DeviceConfig": "anychip_sdk.device",
    "DeviceInfo": "anychip_sdk.device",
    "Event": "anychip_sdk.device",
    "Finding": "anychip_sdk.finding",
    "Fusion": "anychip_sdk.fusion",
    "KVLayout": "anychip_sdk.kv",
    "KVPool": "anychip_sdk.kv",
    "KVSpec": "anychip_sdk.kv",
    "KernelSpeed": "anychip_sdk.speeds",
    "MemoryInfo": "anychip_sdk.device",
    "OpKey": "anychip_sdk.registry",
    "OpRegistry": "anychip_sdk.registry",
    "PreparedWeight": "anychip_sdk.hooks",
    "Registrar": "anychip_sdk.registry",
    "Requirements": "anychip_sdk.info",
    "SlabKVPool": "anychip_sdk.kv",
    "Speeds": "anychip_sdk.speeds",
    "Stream": "anychip_sdk.device",
    "at_least": "anychip_sdk.registry",
    "at_most": "anychip_sdk.registry",
    "hookimpl": "anychip_sdk.hooks",
    "load_backend": "anychip_sdk.backend",
    "multiple_of": "anychip_sdk.registry",
    "one_of": "anychip_sdk.registry",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(importlib.import_module(home), name)


__all__ = [
    "API_VERSION",
    "CATALOGUE",
    "AttentionBatch",
    "Backend",
    "BackendInfo",
    "Capabilities",
    "CompileContext",
    "Device",
    "DeviceConfig",
    "DeviceInfo",
    "Event",
    "Finding",
    "Fusion",
    "KVLayout",
    "KVPool",
    "KVSpec",
    "KernelSpeed",
    "MemoryInfo",
    "OpKey",
    "OpRegistry",
    "PreparedWeight",
    "Registrar",
    "Requirements",
    "SlabKVPool",
    "Speeds",
    "Stream",
    "at_least",
    "at_most",
    "hookimpl",
    "load_backend",
    "multiple_of",
    "one_of",
]
