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
    from anychip_sdk.kv import KVPool, KVSpec
    from anychip_sdk.registry import Registrar

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
    """

    value: Any
    nbytes: int
    layout: str = "plain"


@dataclass(frozen=True)
class CompileContext:
    """What a backend's compiler may want to know about a graph."""

    device: Device
    dtype: torch.dtype
    values: Mapping[str, Any]  #: get_attr target -> weight, cache or table, as bound
    max_tokens: int  #: the most tokens of one step
    max_rows: int  #: the most sequences of one step
    generated: Callable[..., Any] | None = None  #: the generated Python of the graph, for steps that one leaves to it


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
def anychip_create_kv_pool(spec: KVSpec, device: Device) -> KVPool | None:
    """(optional) The pool of KV pages. Default: SlabKVPool."""


@hookspec
def anychip_fusions() -> Sequence[Fusion]:  # type: ignore[empty-body]
    """(optional) Fusions of the backend's own, besides the built-in ones. Default: none."""


@hookspec(firstresult=True)
def anychip_prepare_weight(name: str, tensor: torch.Tensor, op: str, device: Device) -> PreparedWeight | None:
    """(optional) Turn a weight into the layout that the backend's kernel for `op` wants. Default: unchanged.

    Called once for each weight of an op whose kernel was registered with prepares_weight; `tensor` is on the device.
    """


@hookspec(firstresult=True)
def anychip_compile(graph: torch.fx.Graph, context: CompileContext) -> Callable[..., Any] | None:
    """(optional) A callable that runs the whole graph. Default: None, run the generated Python."""


@hookspec(firstresult=True)
def anychip_collectives(group: Any, device: Device) -> Any | None:
    """(optional) Collectives for tensor parallelism. Default: torch.distributed."""


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
    "anychip_compile",
    "anychip_collectives",
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
    "anychip_collectives",
    "anychip_compile",
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
