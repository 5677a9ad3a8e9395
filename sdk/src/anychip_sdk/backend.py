"""One backend, loaded and validated: its plugin behind a typed face. Knows the hooks; knows no entry points."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any, TypeVar

import pluggy
import torch

from anychip_sdk import hooks
from anychip_sdk.answers import checked_devices, checked_findings, checked_reasons, checked_weight, memory_problem
from anychip_sdk.contract import check_ranges, register, register_emulator
from anychip_sdk.device import Device, DeviceConfig, DeviceInfo
from anychip_sdk.errors import BackendBroken, DeviceAbsent
from anychip_sdk.finding import Finding
from anychip_sdk.fusion import Fusion
from anychip_sdk.guard import blaming, shown, within
from anychip_sdk.hooks import CompileContext, PreparedWeight
from anychip_sdk.info import BackendInfo, Requirements
from anychip_sdk.kv import KVPool, PoolSpec
from anychip_sdk.program import Program
from anychip_sdk.registry import REFERENCE, OpRegistry

#: what a recipe can name
_POLICY = re.compile(r"[a-z][a-z0-9_.-]*")

PROBE_SECONDS = 60.0  #: a probe or a diagnosis that takes longer hangs, as drivers do

T = TypeVar("T")


class Backend:
    """A loaded backend. Built by `load_backend`; the engine calls the objects it returns, never the hooks.

    Attributes:
        info: what the plugin says of itself.
        distribution: the Python distribution that holds it, and its version.
        ops: its kernels, the references behind them.
        fusions: its own fusions.
        emulated: its device is the vendor's emulator.
    """

    def __init__(
        self,
        manager: pluggy.PluginManager,
        info: BackendInfo,
        distribution: str,
        version: str,
        *,
        emulated: bool = False,
    ) -> None:
        self.info = info
        self.emulated = emulated
        self.distribution = distribution
        self.version = version
        self._manager = manager
        self.ops = self._registered_ops()
        self.fusions = self._checked_fusions()

    @property
    def name(self) -> str:
        return self.info.name

    def probe(self) -> tuple[DeviceInfo, ...]:
        """The devices that are present now.

        Raises:
            BackendBroken: the hook raised, takes longer than PROBE_SECONDS, or its answer breaks the contract (types,
                free <= total, names).
        """
        return self._ask("anychip_probe", checked_devices, seconds=PROBE_SECONDS)

    def open(self, device: DeviceInfo, config: DeviceConfig) -> Device:
        """Open a probed device and initialise it."""
        opened = self._call("anychip_open_device", Device, device=device, config=config)
        with self._blamed("Device.init"):
            opened.init(config)
        with self._blamed("Device.memory"):
            problem = memory_problem(opened.memory())
        if problem is not None:
            raise self._broken("Device.memory", problem)
        return opened

    def create_kv_pool(self, spec: PoolSpec, device: Device) -> KVPool:
        """The pool, checked against the spec: page size, slots, groups and budget.

        Raises:
            BackendBroken: it is not what was asked for.
        """
        pool = self._call("anychip_create_kv_pool", KVPool, spec=spec, device=device)
        with self._blamed("anychip_create_kv_pool"):
            wrong = _pool_problems(pool, spec)
        if wrong:
            raise self._broken("anychip_create_kv_pool", "; ".join(wrong))
        return pool

    def prepare_weight(self, name: str, tensor: torch.Tensor, op: str, device: Device) -> PreparedWeight:
        return self._ask("anychip_prepare_weight", checked_weight, name=name, tensor=tensor, op=op, device=device)

    def compiles(self, program: Program) -> tuple[str | None, ...] | None:
        """What the backend's compiler makes of each call: None where it takes it, else why not; None: it has none."""
        return self._ask("anychip_compiles", lambda found: checked_reasons(found, len(program.calls)), program=program)

    def compile(self, program: Program, context: CompileContext) -> Callable[..., tuple[torch.Tensor, ...]] | None:
        compiled = self._raw("anychip_compile", program=program, context=context)
        if compiled is not None and not callable(compiled):
            raise self._broken("anychip_compile", f"returned {shown(compiled)}, expected a callable or None")
        return compiled  # type: ignore[no-any-return]

    def diagnose(self) -> tuple[Finding, ...]:
        """What the backend has to say of itself on this machine; empty where it has nothing.

        Raises:
            BackendBroken: the hook raised, takes longer than PROBE_SECONDS, or returned anything but findings.
        """
        return self._ask("anychip_diagnose", checked_findings, seconds=PROBE_SECONDS)

    def find_device(self, name: str | None) -> DeviceInfo:
        """The probed device of that name; the first one for None or for the backend's bare name.

        Raises:
            DeviceAbsent: there is none, with the probe's reason or the names that exist.
        """
        devices = self.probe()
        if not devices:
            reason = self.info.absence or "the probe found none"
            message = f"backend '{self.name}' {self.version}: no device present: {reason}"
            raise DeviceAbsent(message)
        if name is None or name == self.name:
            return devices[0]
        for device in devices:
            if device.name == name:
                return device
        translated = self._by_index(name, devices)
        if translated is None:
            present = ", ".join(device.name for device in devices)
            message = f"backend '{self.name}': no device '{name}'; present: {present}"
            raise DeviceAbsent(message)
        return translated

    def hooks_implemented(self) -> tuple[str, ...]:
        """The names of the hooks that the vendor's plugin implements."""
        names = []
        for name in hooks.HOOKS:
            implementations = getattr(self._manager.hook, name).get_hookimpls()
            if any(one.plugin_name == self.name for one in implementations):
                names.append(name)
        return tuple(names)

    def _by_index(self, name: str, devices: Sequence[DeviceInfo]) -> DeviceInfo | None:
        """A name in another style means the device with that index, if the backend claims to translate it."""
        prefix, _, index = name.partition(":")
        if prefix not in self.info.claims.get("device_aliases", "").split() or not index.isdigit():
            return None
        return devices[int(index)] if int(index) < len(devices) else None

    def _registered_ops(self) -> OpRegistry:
        registry = OpRegistry()
        for provider, other in ((self.name, REFERENCE), (REFERENCE, self.name)):
            plugin = self._manager.get_plugin(other)
            caller = self._manager.subset_hook_caller("anychip_register_ops", [plugin])
            with self._blamed("anychip_register_ops"):
                answers: list[object] = caller(registry=registry.registrar(provider))
            if answers:  # pluggy leaves out None
                raise self._broken("anychip_register_ops", f"returned {shown(answers[0])}, expected None")
        return registry

    def _checked_fusions(self) -> tuple[Fusion, ...]:
        def check(answers: Sequence[Sequence[object]]) -> tuple[Fusion, ...]:
            found = [fusion for answer in answers for fusion in answer]
            for fusion in found:
                if not isinstance(fusion, Fusion):
                    message = f"{shown(fusion)} is not a Fusion"
                    raise ValueError(message)
                if not _POLICY.fullmatch(fusion.policy):
                    message = f"fusion '{fusion.name}' has policy '{fusion.policy}', expected a name in lower case"
                    raise ValueError(message)
            return tuple(one for one in found if isinstance(one, Fusion))

        return self._ask("anychip_fusions", check)

    def _raw(self, hook: str, **arguments: Any) -> Any:
        with self._blamed(hook):
            return getattr(self._manager.hook, hook)(**arguments)

    def _call(self, hook: str, kind: Callable[..., T], **arguments: Any) -> T:
        answer = self._raw(hook, **arguments)
        if not isinstance(answer, kind):  # type: ignore[arg-type]  # abstract classes are no type[T]
            raise self._broken(hook, f"returned {shown(answer)}, expected {kind.__name__}")
        return answer  # type: ignore[no-any-return]

    def _ask(self, hook: str, check: Callable[[Any], T], *, seconds: float | None = None, **arguments: Any) -> T:
        """A hook's answer as `check` reads it, which raises a ValueError for one that breaks the contract."""
        caller = getattr(self._manager.hook, hook)
        with self._blamed(hook):
            answer = caller(**arguments) if seconds is None else within(seconds, lambda: caller(**arguments))
            try:
                return check(answer)
            except ValueError as error:
                raise self._broken(hook, str(error)) from error

    def _blamed(self, where: str) -> AbstractContextManager[None]:
        return blaming(lambda what: self._broken(where, what))

    def _broken(self, where: str, what: str) -> BackendBroken:
        return BackendBroken(f"backend '{self.name}' ({self.distribution} {self.version}): {where}: {what}")


def _pool_problems(pool: KVPool, spec: PoolSpec) -> list[str]:
    layout = pool.layout
    asked = {"page size": spec.page_size, "number of slots": spec.slots}
    found = {"page size": layout.page_size, "number of slots": layout.slots}
    wrong = [
        f"the pool's {name} is {found[name]}, {want} was asked for"
        for name, want in asked.items()
        if found[name] != want
    ]
    if pool.groups != spec.groups:
        wrong.append("the pool's groups are not those that were asked for")
    tokens_bytes = layout.pages * layout.page_size * layout.bytes_per_token
    if layout.pages < 1 or tokens_bytes + layout.slots * layout.bytes_per_slot > spec.budget_bytes:
        wrong.append(
            f"{layout.pages} pages of {layout.page_size} tokens do not fit the budget of {spec.budget_bytes} bytes"
        )
    return wrong


def load_backend(
    name: str, plugin: ModuleType | object, *, distribution: str, version: str, emulate: bool = False
) -> Backend:
    """Register a plugin with the defaults behind it and check it against the contract.

    Args:
        name: the entry point's name, which must be the one the plugin gives itself.
        plugin: the module or object that holds the hook implementations.
        distribution: the Python distribution that it comes from.
        version: of the distribution.
        emulate: take the emulator that the plugin offers in place of the plugin itself.

    Raises:
        BackendBroken: a misspelt or missing hook, wrong arguments, or a hook that raises.
        BackendIncompatible: its API range or torch range does not fit.
        PreconditionFailed: an emulator is asked for and there is none.
    """
    where = f"backend '{name}' ({distribution} {version})"
    made = register_emulator if emulate else register
    manager, info = made(name, plugin, where)
    check_ranges(info, where)
    return Backend(manager, info, distribution, version, emulated=emulate)


__all__ = ["Backend", "BackendInfo", "Requirements", "load_backend"]
