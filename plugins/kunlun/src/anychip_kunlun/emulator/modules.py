"""The vendor's modules, with their names and signatures. Knows generations and what is missing; knows no tool."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from anychip_kunlun.emulator.collectives import Collectives
from anychip_kunlun.emulator.machine import Machine
from anychip_kunlun.emulator.ops import AttentionOps, CacheOps, DenseOps, QuantOps, RopeOps, SamplingOps
from anychip_kunlun.emulator.profile import Profile

HOOK, COCOPOD, GATE_OPS = "torch_xmlir", "cocopod", "xspeedgate_ops"
NEW_NAME, OLD_NAME = "kunlun_ops", "xtorch_ops"
TORCH_OPS, DISTRIBUTED = "torch.ops", "torch.distributed"

#: of each generation's wheels
VERSIONS: Mapping[str, Mapping[str, str]] = {
    "torch290": {
        "torch": "2.9.0+cu128",
        "xmlir": "2.9.0",
        "torch-xray": "2.0.3",
        "torch-plugin": "0.1.0",
        "hydrax": "0.1.0",
        "kunlun_ops": "0.1.58",
        "xspeedgate_ops": "1.5.0",
        "cocopod": "1.1.0",
    },
    "torch251": {
        "torch": "2.5.1+cu118",
        "xmlir": "2.5.1",
        "torch-xray": "2.0.3",
        "torch-plugin": "0.1.0",
        "hydrax": "0.1.0",
        "kunlun_ops": "0.1.58",
        "xspeedgate_ops": "1.1.0",
        "cocopod": "1.1.0",
    },
}
#: what only one generation offers
ONLY = {"torch251": ("paged_attention", "silu_and_mul"), "torch290": ("speculative_attention",)}


class Modules:
    """What can be imported on the virtual host. Nothing is put on sys.path or into sys.modules."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._profile = machine.profile
        self._loaded: dict[str, ModuleType] = {}
        ops_name = OLD_NAME if self._profile.old_ops_name else NEW_NAME
        self._makers: dict[str, Callable[[], Mapping[str, Any]]] = {
            HOOK: self._hook,
            ops_name: lambda: ops_of(machine),
            GATE_OPS: dict,
            COCOPOD: dict,
            TORCH_OPS: self._torch_ops,
            DISTRIBUTED: lambda: {"": Collectives(machine)},
        }

    def has(self, name: str) -> bool:
        return name in self._makers and name not in self._profile.missing_modules

    def load(self, name: str) -> ModuleType:
        """Import a module of the virtual host.

        Raises:
            ModuleNotFoundError: as importlib does.
        """
        if not self.has(name):
            message = f"No module named '{name}'"
            raise ModuleNotFoundError(message, name=name)
        if name == GATE_OPS and COCOPOD not in self._loaded:
            self.load(COCOPOD)
        if name not in self._loaded or name == TORCH_OPS:
            self._loaded[name] = _module(name, self._makers[name]())
        return self._loaded[name]

    def version(self, distribution: str) -> str | None:
        """What importlib.metadata would say."""
        wanted = distribution.replace("-", "_")
        module = {"xmlir": HOOK, NEW_NAME: OLD_NAME if self._profile.old_ops_name else NEW_NAME}.get(wanted, wanted)
        if module in self._profile.missing_modules or wanted in self._profile.missing_modules:
            return None
        known = {name.replace("-", "_"): text for name, text in versions(self._profile).items()}
        return known.get(wanted)

    def _hook(self) -> dict[str, Any]:
        return {"__version__": OrderedDict(versions(self._profile)), "xpu": _xpu(self._machine)}

    def _torch_ops(self) -> dict[str, Any]:
        return {GATE_OPS: SimpleNamespace(**gate_ops_of(self._machine))} if GATE_OPS in self._loaded else {}


def versions(profile: Profile) -> dict[str, str]:
    """Of the wheels that are installed on the virtual host."""
    return {name: text for name, text in VERSIONS[profile.generation].items() if name not in profile.missing_modules}


def ops_of(machine: Machine) -> dict[str, Callable[..., Any]]:
    """The functions of kunlun_ops, in the machine's generation."""
    found: dict[str, Callable[..., Any]] = {}
    for family in (DenseOps, RopeOps, CacheOps, AttentionOps, QuantOps, SamplingOps):
        found.update(_functions(family(machine)))
    older = found.pop("rmsnorm_with_out")
    if machine.profile.generation == "torch251":
        found["rmsnorm"] = older
    absent = [name for generation, names in ONLY.items() if generation != machine.profile.generation for name in names]
    return {name: one for name, one in found.items() if name not in (*absent, *machine.profile.missing_ops)}


def gate_ops_of(machine: Machine) -> dict[str, Callable[..., Any]]:
    """The functions of torch.ops.xspeedgate_ops."""
    has_weak_references = machine.profile.generation == "torch290"
    return {"weak_ref_tensor": lambda tensor: tensor.detach()} if has_weak_references else {}


def _functions(family: object) -> dict[str, Callable[..., Any]]:
    methods = inspect.getmembers(family, inspect.ismethod)
    return {name: method for name, method in methods if not name.startswith("_")}


def _xpu(machine: Machine) -> SimpleNamespace:
    """torch_xmlir.xpu: it knows the chip's own name, and calls devices xla:N as in older days."""
    is_applied = machine.profile.hook_applied

    def properties(index: int = 0) -> SimpleNamespace:
        card = machine.card(index)
        return SimpleNamespace(
            name="KL3" if machine.profile.chip == "P800" else "KL2",
            total_memory=card.allocator.driver.capacity >> 20,
            multi_processor_count=12,
            major=0,
            minor=0,
        )

    def set_device(index: int) -> str:
        machine.card(index)
        machine.thread.index = index
        return f"xla:{index}"

    return SimpleNamespace(
        is_available=lambda: is_applied,
        device_count=lambda: len(machine.visible),
        current_device=lambda: machine.thread.index,
        set_device=set_device,
        get_device_properties=properties,
        synchronize=machine.synchronize,
    )


def _module(name: str, contents: Mapping[str, Any]) -> ModuleType:
    module = ModuleType(name, "Imitated by the emulator of the Kunlun stack.")
    for key, value in contents.items():
        if key:
            setattr(module, key, value)
        else:
            module.__dict__.update(_functions(value))
    return module


def dispatch_dump(machine: Machine, operator: str) -> str:
    """torch's table of kernels: that of this machine's torch, with the vendor's in place of CUDA's if it is patched."""
    plain = torch._C._dispatch_dump(operator)
    if not machine.profile.hook_applied or machine.environ.get("DISABLE_XPYTORCH") == "1":
        return plain
    kernel = "CUDA: registered at /xmlir/build/torch_xmlir/csrc/RegisterCUDA.cpp:1 :: [ boxed unboxed ]"
    return f"{plain}{kernel}\n"


__all__ = ["VERSIONS", "Modules", "dispatch_dump", "gate_ops_of", "ops_of", "versions"]
