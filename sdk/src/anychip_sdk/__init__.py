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
    from anychip_sdk.kv import KVLayout, KVPool, PoolSpec, SlabKVPool
    from anychip_sdk.ops.base import CATALOGUE
    from anychip_sdk.program import Call, Program
    from anychip_sdk.registry import OpKey, OpRegistry, Prepare, Registrar, at_least, at_most, multiple_of, one_of
    from anychip_sdk.speeds import KernelSpeed, Speeds
    from anychip_sdk.state import StateGroup, StateSpec, StateTensor
    from anychip_sdk.step import Paged, Slots, Step, StepLimits

_HOMES = {
    "API_VERSION": "anychip_sdk.hooks",
    "Backend": "anychip_sdk.backend",
    "BackendInfo": "anychip_sdk.info",
    "CATALOGUE": "anychip_sdk.ops.base",
    "Call": "anychip_sdk.program",
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
    "KernelSpeed": "anychip_sdk.speeds",
    "MemoryInfo": "anychip_sdk.device",
    "OpKey": "anychip_sdk.registry",
    "OpRegistry": "anychip_sdk.registry",
    "Paged": "anychip_sdk.step",
    "PoolSpec": "anychip_sdk.kv",
    "Prepare": "anychip_sdk.registry",
    "PreparedWeight": "anychip_sdk.hooks",
    "Program": "anychip_sdk.program",
    "Registrar": "anychip_sdk.registry",
    "Requirements": "anychip_sdk.info",
    "SlabKVPool": "anychip_sdk.kv",
    "Slots": "anychip_sdk.step",
    "Speeds": "anychip_sdk.speeds",
    "StateGroup": "anychip_sdk.state",
    "StateSpec": "anychip_sdk.state",
    "StateTensor": "anychip_sdk.state",
    "Step": "anychip_sdk.step",
    "StepLimits": "anychip_sdk.step",
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
    "Backend",
    "BackendInfo",
    "Call",
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
    "KernelSpeed",
    "MemoryInfo",
    "OpKey",
    "OpRegistry",
    "Paged",
    "PoolSpec",
    "Prepare",
    "PreparedWeight",
    "Program",
    "Registrar",
    "Requirements",
    "SlabKVPool",
    "Slots",
    "Speeds",
    "StateGroup",
    "StateSpec",
    "StateTensor",
    "Step",
    "StepLimits",
    "Stream",
    "at_least",
    "at_most",
    "hookimpl",
    "load_backend",
    "multiple_of",
    "one_of",
]
