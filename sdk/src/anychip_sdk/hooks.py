"""The hooks that a backend implements, API 1.0. Knows only the contract: each hook is called once, at load."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pluggy
import torch

if TYPE_CHECKING:
    from anychip_sdk.device import Device, DeviceConfig, DeviceInfo
    from anychip_sdk.finding import Finding
    from anychip_sdk.fusion import Fusion
    from anychip_sdk.info import BackendInfo
    from anychip_sdk.kv import KVPool, PoolSpec
    from anychip_sdk.program import Program
    from anychip_sdk.registry import Registrar
    from anychip_sdk.step import StepLimits

API_VERSION = "1.0"
PROJECT = "anychip"
ENTRY_POINT_GROUP = "anychip.backends"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@dataclass(frozen=True)
class PreparedWeight:
    """A weight in the layout that a kernel wants; only kernels registered with prepares_weight meet it.

    Attributes:
        value: what the kernel gets as its weight argument.
        nbytes: device bytes that it takes.
        layout: a name for people, e.g. "plain" or "blocked".
        join: of a stack of some experts' weights: makes one of several stacks, given this one and those behind it.
            None: only whole stacks can be prepared; with it, stacks are loaded expert by expert, and the device never
            holds all of a stack beside its prepared form.
    """

    value: Any
    nbytes: int
    layout: str = "plain"
    join: Callable[[Sequence[PreparedWeight]], PreparedWeight] | None = None


@dataclass(frozen=True)
class CompileContext:
    """What a backend's compiler may want to know about a program.

    Attributes:
        device: that it will run on.
        dtype: the model's.
        values: the program's constants by key: weights, state tensors and tables, as bound.
        limits: the most that any step holds.
        generated: the program as a plain function, for steps that the compiler leaves to it.
    """

    device: Device
    dtype: torch.dtype
    values: Mapping[str, Any]
    limits: StepLimits
    generated: Callable[..., tuple[torch.Tensor, ...]]


@hookspec(firstresult=True)
def anychip_backend() -> BackendInfo:  # type: ignore[empty-body]
    """(required) Who this backend is and what it requires. Static: touches no device, imports no vendor library."""


@hookspec(firstresult=True)
def anychip_probe() -> Sequence[DeviceInfo]:  # type: ignore[empty-body]
    """(required) The devices that are present now; empty when there are none. Never raises for absence."""


@hookspec(firstresult=True)
def anychip_open_device(device: DeviceInfo, config: DeviceConfig) -> Device:  # type: ignore[empty-body]
    """(required) Open one of the probed devices; the platform calls its `init` once afterwards."""


@hookspec
def anychip_register_ops(registry: Registrar) -> None:
    """(required) Register the backend's kernels. What is not registered falls back to the reference."""


@hookspec(firstresult=True)
def anychip_create_kv_pool(spec: PoolSpec, device: Device) -> KVPool | None:
    """(optional) The pool of the model's states. Default: SlabKVPool."""


@hookspec
def anychip_fusions() -> Sequence[Fusion]:  # type: ignore[empty-body]
    """(optional) Fusions of the backend's own, besides the built-in ones. Default: none."""


@hookspec(firstresult=True)
def anychip_prepare_weight(name: str, tensor: torch.Tensor, op: str, device: Device) -> PreparedWeight | None:
    """(optional) Turn a weight into the layout that the backend's kernel for `op` wants. Default: unchanged.

    Called once for each weight of an op whose kernel was registered with prepares_weight; `tensor` is on the device.
    """


@hookspec(firstresult=True)
def anychip_compiles(program: Program) -> Sequence[str | None] | None:
    """(optional) Which calls the backend's compiler takes: None for each that it does, else why not, in a few words.

    Asked when a recipe is planned, so that the plan can say where the forward is cut: no device is open, and no
    constant has a value. Runs of calls that are taken become pieces; all other calls run as generated Python around
    them. Default: None, nothing is compiled.
    """


@hookspec(firstresult=True)
def anychip_compile(program: Program, context: CompileContext) -> Callable[..., tuple[torch.Tensor, ...]] | None:
    """(optional) A piece as a function of the step and the piece's inputs, which returns its outputs.

    Called once for each piece, at load. Default: None, run the generated Python.
    """


@hookspec(firstresult=True)
def anychip_emulator() -> object | None:
    """(optional) A plugin with the same hooks that runs on the backend's emulator, without the chip. Default: none.

    Called only where a recipe or --emulate asks for it; what it returns takes the place of the backend's plugin.
    """


@hookspec(firstresult=True)
def anychip_diagnose() -> Sequence[Finding] | None:
    """(optional) What `platform doctor` says of the backend: checks, advice, facts. Default: nothing.

    Works without the chip, and never raises for its absence; that is a finding.
    """


HOOKS = (
    "anychip_backend",
    "anychip_probe",
    "anychip_open_device",
    "anychip_register_ops",
    "anychip_create_kv_pool",
    "anychip_fusions",
    "anychip_prepare_weight",
    "anychip_compiles",
    "anychip_compile",
    "anychip_emulator",
    "anychip_diagnose",
)
REQUIRED = ("anychip_backend", "anychip_probe", "anychip_open_device", "anychip_register_ops")

__all__ = [
    "API_VERSION",
    "ENTRY_POINT_GROUP",
    "HOOKS",
    "PROJECT",
    "REQUIRED",
    "CompileContext",
    "PreparedWeight",
    "anychip_backend",
    "anychip_compile",
    "anychip_compiles",
    "anychip_create_kv_pool",
    "anychip_diagnose",
    "anychip_emulator",
    "anychip_fusions",
    "anychip_open_device",
    "anychip_prepare_weight",
    "anychip_probe",
    "anychip_register_ops",
    "hookimpl",
    "hookspec",
]
