"""The hooks of the CPU backend. Knows which part answers which hook; computes nothing itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from anychip_cpu import kernels, pool
from anychip_cpu.device import CpuDevice, probe
from anychip_cpu.diagnosis import findings
from anychip_cpu.kernels import dense, experts, packed, quantized, routing
from anychip_cpu.programs import compiled, refusals
from anychip_sdk.backend import BackendInfo, Requirements
from anychip_sdk.device import Device, DeviceConfig, DeviceInfo
from anychip_sdk.finding import Finding
from anychip_sdk.hooks import CompileContext, PreparedWeight, hookimpl
from anychip_sdk.kv import KVPool, PoolSpec
from anychip_sdk.program import Program
from anychip_sdk.registry import Registrar

#: torch asks for huge pages for what it allocates, packed weights above all: decode steps were 1.02 to 1.4 times
#: faster. OpenMP's threads spin for less than a millisecond before they sleep: where other work takes a core, one that
#: spins keeps the one that it waits for from the core that is left, and a step of 10 ms takes up to 300
ENVIRONMENT = {"THP_MEM_ALLOC_ENABLE": "1", "GOMP_SPINCOUNT": "10000"}


@hookimpl
def anychip_backend() -> BackendInfo:
    return BackendInfo(
        name="cpu",
        vendor="anychip",
        api=">=1.0,<2",
        requirements=Requirements(torch=">=2.5"),
        environment=ENVIRONMENT,
        on_every_machine=True,
    )


@hookimpl
def anychip_probe() -> Sequence[DeviceInfo]:
    return (probe(),)


@hookimpl
def anychip_open_device(device: DeviceInfo, config: DeviceConfig) -> Device:
    return CpuDevice()


@hookimpl
def anychip_register_ops(registry: Registrar) -> None:
    kernels.register(registry)


@hookimpl
def anychip_create_kv_pool(spec: PoolSpec, device: Device) -> KVPool:
    return pool.create(spec, device)


@hookimpl
def anychip_prepare_weight(name: str, tensor: torch.Tensor, op: str) -> PreparedWeight | None:
    if op == "moe_experts" and tensor.dtype not in experts.DTYPES:
        return None
    if op in experts.OPS:
        return experts.prepare(name, tensor, op)
    if op == routing.OP:
        return routing.prepare(tensor)
    if op in quantized.OPS:
        return quantized.prepare(tensor)
    if op in packed.OPS and tensor.dtype == dense.DTYPE and dense.lack() is None:
        return dense.prepare(name, tensor)
    return packed.prepare(tensor, op)


@hookimpl
def anychip_compiles(program: Program) -> Sequence[str | None]:
    return refusals(program)


@hookimpl
def anychip_compile(program: Program, context: CompileContext) -> Callable[..., tuple[torch.Tensor, ...]] | None:
    return compiled(program, context)


@hookimpl
def anychip_diagnose() -> Sequence[Finding]:
    return findings()


__all__ = [
    "anychip_backend",
    "anychip_compile",
    "anychip_compiles",
    "anychip_create_kv_pool",
    "anychip_diagnose",
    "anychip_open_device",
    "anychip_prepare_weight",
    "anychip_probe",
    "anychip_register_ops",
]
