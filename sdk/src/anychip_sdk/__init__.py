"""What a chip vendor implements to serve language models with anychip. Knows nothing of recipes, models and servers."""

from anychip_sdk.backend import Backend, BackendInfo, Requirements, load_backend
from anychip_sdk.device import Capabilities, Device, DeviceConfig, DeviceInfo, Event, MemoryInfo, Stream
from anychip_sdk.fusion import Fusion
from anychip_sdk.hooks import API_VERSION, CompileContext, PreparedWeight, hookimpl
from anychip_sdk.kv import KVLayout, KVPool, KVSpec, SlabKVPool
from anychip_sdk.ops.base import CATALOGUE, AttentionBatch
from anychip_sdk.registry import OpKey, OpRegistry, Registrar, at_least, at_most, multiple_of, one_of

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
    "Fusion",
    "KVLayout",
    "KVPool",
    "KVSpec",
    "MemoryInfo",
    "OpKey",
    "OpRegistry",
    "PreparedWeight",
    "Registrar",
    "Requirements",
    "SlabKVPool",
    "Stream",
    "at_least",
    "at_most",
    "hookimpl",
    "load_backend",
    "multiple_of",
    "one_of",
]
