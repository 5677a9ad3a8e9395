"""The CPU backend of anychip: host memory, oneDNN and torch kernels. Knows the SDK only."""

from anychip_cpu.backend import (
    anychip_backend,
    anychip_compile,
    anychip_compiles,
    anychip_diagnose,
    anychip_open_device,
    anychip_prepare_weight,
    anychip_probe,
    anychip_register_ops,
)

__all__ = [
    "anychip_backend",
    "anychip_compile",
    "anychip_compiles",
    "anychip_diagnose",
    "anychip_open_device",
    "anychip_prepare_weight",
    "anychip_probe",
    "anychip_register_ops",
]
