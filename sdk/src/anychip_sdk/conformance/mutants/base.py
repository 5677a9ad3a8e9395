"""How a mutant is declared: the healthy reference chip with one part replaced. Knows no fault and no check.

    @mutant("AC-OP-009", op="argmax")
    def argmax_takes_the_last(logits): ...

The name is the function's or class's, the fault is its docstring. A function replaces the kernel of `op`, a class
replaces what it is derived from: the plugin, the device or the KV pool.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, ClassVar, TypeVar

import torch

from anychip_sdk.backend import Backend, load_backend
from anychip_sdk.conformance.cases import further_packages, load_checks
from anychip_sdk.conformance.claims import Claims
from anychip_sdk.conformance.reference.device import AsyncReferenceDevice
from anychip_sdk.conformance.reference.faulty.base import Fault
from anychip_sdk.conformance.reference.plugin import (
    NAME,
    AsyncReferencePlugin,
    ReferenceLoader,
    reference_claims,
)
from anychip_sdk.conformance.requirements import REQUIREMENTS
from anychip_sdk.device import Device
from anychip_sdk.fusion import POLICIES, Fusion
from anychip_sdk.hooks import hookimpl
from anychip_sdk.kv import KVPool, PoolSpec, SlabKVPool
from anychip_sdk.ops import CATALOGUE
from anychip_sdk.registry import KernelFunction, Registrar, dtype_name

T = TypeVar("T")

DTYPES = (torch.float32, torch.bfloat16)
#: where mutants of the SDK's own tracks are declared
MODULES = ("kernels", "quantized", "kernel_behaviour", "registrations", "pools")


class HealthyPlugin(AsyncReferencePlugin):
    """The reference chip with everything that a mutant may replace."""

    dtypes: tuple[torch.dtype, ...] = DTYPES
    pool_class: type[KVPool] = SlabKVPool
    fusions: tuple[Fusion, ...] = ()
    replaced: ClassVar[Mapping[str, KernelFunction]] = {}

    @hookimpl
    def anychip_register_ops(self, registry: Registrar) -> None:
        for op, kernel in self.kernels().items():
            version = CATALOGUE[op].version
            registry.register(op, kernel, dtypes=self.dtypes, name=f"{NAME}_{op}", version=version)

    @hookimpl
    def anychip_create_kv_pool(self, spec: PoolSpec, device: Device) -> KVPool:
        make: Any = self.pool_class
        found: KVPool = make(spec, device)
        return found

    @hookimpl
    def anychip_fusions(self) -> Sequence[Fusion]:
        return self.fusions

    def kernels(self) -> Mapping[str, KernelFunction]:
        return {**super().kernels(), **self.replaced}


def healthy_claims(**capabilities: bool) -> Claims:
    """What the healthy plugin claims: all that it has."""
    claims = reference_claims()
    dtypes = tuple(dtype_name(dtype) for dtype in DTYPES)
    return replace(
        claims,
        dtypes=dtypes,
        ops={name: dtypes for name in CATALOGUE},
        capabilities={**claims.capabilities, "thread_safe": True, "serving": True, **capabilities},
        fusions=tuple(name for name in POLICIES if name != "shared_experts"),
    )


@dataclass(frozen=True)
class Mutant:
    """One way to be wrong.

    Attributes:
        name: in words, with underscores.
        kills: the requirements that must find it, each of them; others may.
        fault: what is wrong, one line.
        plugin: the reference chip's plugin with the fault.
        claims: what is claimed of it.
        op: whose kernel is wrong; cases of other ops need not be run.
        around: a fault of what is around the backend; in force while cases run.
        pollutes: leaves traces in its process.
        raises: parts of "Type: text" of what the fault itself raises, where raising is the fault or follows from it.
            A kill by any other exception is an accident.
    """

    name: str
    kills: tuple[str, ...]
    fault: str
    plugin: type[AsyncReferencePlugin]
    claims: Claims
    op: str = ""
    around: Callable[[], AbstractContextManager[object]] = nullcontext
    pollutes: bool = False
    raises: tuple[str, ...] = ()

    @property
    def load(self) -> Callable[[], Backend]:
        return MutantLoader(self.name) if issubclass(self.plugin, HealthyPlugin) else ReferenceLoader(self.name)


@dataclass(frozen=True)
class MutantLoader:
    """Loads a mutant that uses one process alone; can be pickled."""

    name: str

    def __call__(self) -> Backend:
        return load_backend(NAME, load_mutants()[self.name].plugin(), distribution="anychip-sdk", version="1.0")


@dataclass(frozen=True)
class HealthyLoader(ReferenceLoader):
    """Loads the healthy chip of this package; can be pickled, and copies in other processes see its memory."""

    plugin: type[HealthyPlugin] = HealthyPlugin

    def __call__(self) -> Backend:
        return load_backend(
            NAME, self.plugin(self.folder, self.capacity_bytes), distribution="anychip-sdk", version="1.0"
        )


@dataclass(frozen=True)
class Healthy:
    """A right backend on which a requirement has something to say."""

    plugin: type[HealthyPlugin]
    claims: Claims

    def load(self) -> Callable[[], Backend]:
        return HealthyLoader(plugin=self.plugin)


MUTANTS: dict[str, Mutant] = {}
#: requirement -> the right backend that it is tested on, where the plain one has nothing that it is about
HEALTHY: dict[str, Healthy] = {}


def healthy(requirement: str, plugin: type[HealthyPlugin], claims: Claims) -> None:
    """Test a requirement on this right backend instead of the plain one."""
    HEALTHY[requirement] = Healthy(plugin, claims)


def healthy_for(requirement: str) -> Healthy:
    """The right backend that must pass a requirement."""
    return HEALTHY.get(requirement) or Healthy(HealthyPlugin, healthy_claims())


def mutant(
    *kills: str,
    op: str = "",
    claims: Claims | None = None,
    base: type[HealthyPlugin] = HealthyPlugin,
    around: Callable[[], AbstractContextManager[object]] = nullcontext,
    raises: Sequence[str] = (),
) -> Callable[[T], T]:
    """Declare a mutant.

    Args:
        kills: the requirements that must find it.
        op: the op that a function is the kernel of.
        claims: what is claimed of it; None: what is claimed of the healthy one.
        base: the plugin in which a kernel, a device or a pool is replaced.
        around, raises: see Mutant.
    """

    def wrap(broken: T) -> T:
        target: Any = broken
        name = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in target.__name__).strip("_")
        fault = " ".join(inspect.cleandoc(target.__doc__ or "").split())
        said = claims or healthy_claims()
        plugin = _plugin_with(target, op, base)
        MUTANTS[name] = Mutant(name, kills, fault, plugin, said, op, around, raises=tuple(raises))
        return broken

    return wrap


def with_argument(op: str, args: Sequence[Any], **changes: Callable[[Any], Any]) -> tuple[Any, ...]:
    """An op's arguments with some of them changed, found by the schema's names: positions move as schemas grow."""
    names = [arg.name for arg in CATALOGUE[op].args]
    unknown = sorted(changes.keys() - set(names))
    if unknown:
        message = f"op {op} has no argument {', '.join(unknown)}; expected one of {', '.join(names)}"
        raise ValueError(message)
    return tuple(changes.get(name, lambda value: value)(value) for name, value in zip(names, args, strict=True))


def _plugin_with(broken: Any, op: str, base: type[HealthyPlugin]) -> type[HealthyPlugin]:
    if not isinstance(broken, type):
        return type(broken.__name__, (base,), {"replaced": {**base.replaced, op: broken}})
    if issubclass(broken, HealthyPlugin):
        return broken
    part = "device_class" if issubclass(broken, AsyncReferenceDevice) else "pool_class"
    return type(f"{broken.__name__}Plugin", (base,), {part: broken})


#: faults of the reference chip that outlive their backend
POLLUTING = ("patches_torch",)


@lru_cache(maxsize=1)
def load_mutants() -> dict[str, Mutant]:
    """All mutants by name: the SDK's, then those of installed packages that bring requirements."""
    from anychip_sdk.conformance.reference.faults import FAULTS

    for module in MODULES:
        import_module(f"{__package__}.{module}")
    for package in sorted(further_packages()):
        if package and find_spec(f"{package}.mutants") is not None:
            import_module(f"{package}.mutants")
    twice = sorted(FAULTS.keys() & MUTANTS.keys())
    if twice:
        message = f"two mutants have the same name: {', '.join(twice)}"
        raise ValueError(message)
    return {**{name: _of_fault(fault) for name, fault in FAULTS.items()}, **MUTANTS}


def _of_fault(fault: Fault) -> Mutant:
    """A fault of the reference chip, which claims what the requirements that must find it need."""
    load_checks()
    claims = reference_claims()
    needed = {need: True for key in fault.kills for need in REQUIREMENTS[key].needs}
    claims = replace(claims, capabilities={**claims.capabilities, **needed})
    op = getattr(fault.plugin, "broken_op", "")
    pollutes = fault.name in POLLUTING
    return Mutant(fault.name, fault.kills, fault.text, fault.plugin, claims, op, pollutes=pollutes, raises=fault.raises)


__all__ = [
    "DTYPES",
    "MUTANTS",
    "Healthy",
    "HealthyLoader",
    "HealthyPlugin",
    "Mutant",
    "MutantLoader",
    "healthy",
    "healthy_claims",
    "healthy_for",
    "load_mutants",
    "mutant",
    "with_argument",
]
