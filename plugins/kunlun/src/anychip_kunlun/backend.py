"""The hooks of the backend on one stack, the machine's or the emulator's. Knows which part answers which hook."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import torch

from anychip_kunlun import detect, kernels
from anychip_kunlun.compatibility import judge
from anychip_kunlun.device import KunlunDevice
from anychip_kunlun.diagnose import findings
from anychip_kunlun.graphs import STACK_VARIABLE, CapturedPiece, Trust, graphs_wanted, refusals
from anychip_kunlun.kernels import quantized
from anychip_kunlun.kernels.linear import Linear
from anychip_kunlun.kv import KunlunKVPool
from anychip_kunlun.probe import has_kernels, probe
from anychip_kunlun.selfcheck import LinearCheck
from anychip_kunlun.stack import Stack
from anychip_kunlun.trail import Trail
from anychip_kunlun.vendor import VendorOps
from anychip_sdk.backend import BackendInfo, Requirements
from anychip_sdk.device import Device, DeviceConfig, DeviceInfo
from anychip_sdk.errors import BackendIncompatible, DeviceAbsent
from anychip_sdk.finding import Finding
from anychip_sdk.hooks import CompileContext, PreparedWeight, hookimpl
from anychip_sdk.kv import KVPool, PoolSpec
from anychip_sdk.program import Program
from anychip_sdk.registry import Registrar

#: what the vendor recommends to serve with; the worker starts with these where the user set none
ENVIRONMENT = {
    "CUDA_DEVICE_MAX_CONNECTIONS": "8",
    "CUDA_GRAPH_OPTIMIZE_STREAM": "1",
    "XFT_USE_FAST_SWIGLU": "1",
    "XMLIR_CUDNN_ENABLED": "1",
    "XMLIR_ENABLE_FAST_FC": "1",
    "XPU_USE_DEFAULT_CTX": "1",
    "XPU_USE_FAST_SWIGLU": "1",
}
#: ops whose matrices are checked when they are loaded
PRODUCTS = ("ffn", "linear", "lm_head", "mha")


class KunlunPlugin:
    """The backend's hooks.

    Args:
        open_stack: yields the stack that all of them use; called when the first hook needs it.
    """

    def __init__(self, open_stack: Callable[[], Stack]) -> None:
        self._open_stack = open_stack
        self._vendor = VendorOps(lambda: self._stack, Trail())
        self._trust = Trust()

    @hookimpl
    def anychip_backend(self) -> BackendInfo:
        return BackendInfo(
            name="kunlun",
            vendor="Kunlunxin",
            api=">=1.0,<2",
            requirements=Requirements(torch=">=2.5", driver=">=5.0.21"),
            # the chip's own torch calls its devices cuda:N, so recipes written for it do too
            claims={"device_aliases": "cuda"},
            environment=self._environment(),
            absence=detect.absence(self._stack),
        )

    @hookimpl
    def anychip_probe(self) -> Sequence[DeviceInfo]:
        return probe(self._stack)

    @hookimpl
    def anychip_open_device(self, device: DeviceInfo, config: DeviceConfig) -> Device:
        absence = detect.absence(self._stack)
        if absence:
            message = f"backend 'kunlun': device '{device.name}' can't be opened: {absence}"
            raise DeviceAbsent(message)
        verdicts = judge({**device.versions, **device.attributes})
        refused = [str(one) for one in verdicts if one.severity == "refused"]
        if refused:
            message = f"backend 'kunlun': device {device.name}: {'; '.join(refused)}"
            raise BackendIncompatible(message)
        return KunlunDevice(device, self._vendor, tuple(map(str, verdicts)))

    @hookimpl
    def anychip_register_ops(self, registry: Registrar) -> None:
        kernels.register(registry, self._vendor, lambda: self._has_kernels)

    @hookimpl
    def anychip_create_kv_pool(self, spec: PoolSpec, device: Device) -> KVPool:
        return KunlunKVPool(spec, device)

    @hookimpl
    def anychip_prepare_weight(self, name: str, tensor: torch.Tensor, op: str) -> PreparedWeight | None:
        """Weights stay as they are, but for int8's scales; a product's is checked before anybody is served with it."""
        is_matrix = tensor.dim() == 2 and tensor.numel() > 0
        if op == "linear_int8":
            if is_matrix and not tensor.is_floating_point():
                self._check_int8(name, tensor, op)
            return quantized.prepare(tensor)
        if op in PRODUCTS and is_matrix:
            self._check(name, tensor, op)
        return None

    @hookimpl
    def anychip_compiles(self, program: Program) -> Sequence[str | None] | None:
        return refusals(program) if graphs_wanted(self._stack) else None

    @hookimpl
    def anychip_compile(
        self, program: Program, context: CompileContext
    ) -> Callable[..., tuple[torch.Tensor, ...]] | None:
        return CapturedPiece(program, context, self._vendor, self._trust) if graphs_wanted(self._stack) else None

    @hookimpl
    def anychip_diagnose(self) -> Sequence[Finding]:
        return findings(self._stack)

    @cached_property
    def _stack(self) -> Stack:
        return self._open_stack()

    @cached_property
    def _has_kernels(self) -> bool:
        return has_kernels(self._stack)

    @cached_property
    def _check(self) -> LinearCheck:
        return LinearCheck(Linear(self._vendor).linear)

    @cached_property
    def _check_int8(self) -> LinearCheck:
        return LinearCheck(quantized.Int8Rows(self._vendor).unscaled)

    def _environment(self) -> dict[str, str]:
        """The recommended variables; both of visible devices, where the user set one; graphs, where they are wanted."""
        environ = self._stack.environ
        value = next((environ[name] for name in detect.VISIBLE if name in environ), None)
        visible = {} if value is None else dict.fromkeys(detect.VISIBLE, value)
        return {**ENVIRONMENT, **visible, **({STACK_VARIABLE: "1"} if graphs_wanted(self._stack) else {})}


__all__ = ["ENVIRONMENT", "KunlunPlugin"]
