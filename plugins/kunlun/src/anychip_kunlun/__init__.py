"""The Kunlun backend of anychip: P800 cards through the vendor's torch, or an emulator of it. Knows the SDK only."""

from __future__ import annotations

from anychip_kunlun.backend import KunlunPlugin
from anychip_kunlun.stack import real_stack
from anychip_sdk.hooks import hookimpl

_PLUGIN = KunlunPlugin(real_stack)

anychip_backend = _PLUGIN.anychip_backend
anychip_compile = _PLUGIN.anychip_compile
anychip_create_kv_pool = _PLUGIN.anychip_create_kv_pool
anychip_diagnose = _PLUGIN.anychip_diagnose
anychip_open_device = _PLUGIN.anychip_open_device
anychip_prepare_weight = _PLUGIN.anychip_prepare_weight
anychip_probe = _PLUGIN.anychip_probe
anychip_register_ops = _PLUGIN.anychip_register_ops


@hookimpl
def anychip_emulator() -> object:
    from anychip_kunlun.emulator import open_stack

    return KunlunPlugin(open_stack)


__all__ = [
    "anychip_backend",
    "anychip_compile",
    "anychip_create_kv_pool",
    "anychip_diagnose",
    "anychip_emulator",
    "anychip_open_device",
    "anychip_prepare_weight",
    "anychip_probe",
    "anychip_register_ops",
]
