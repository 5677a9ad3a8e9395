"""One backend, loaded and validated: its plugin behind a typed face. Knows the hooks; knows no entry points."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, TypeVar

import pluggy
import torch

from anychip_sdk import hooks
from anychip_sdk.contract import check_ranges, register, register_emulator
from anychip_sdk.device import Device, DeviceConfig, DeviceInfo
from anychip_sdk.errors import AnychipError, BackendBroken, DeviceAbsent
from anychip_sdk.finding import Finding
from anychip_sdk.fusion import Fusion
from anychip_sdk.hooks import CompileContext, PreparedWeight
from anychip_sdk.info import BackendInfo, Requirements
from anychip_sdk.kv import KVPool, PoolSpec
from anychip_sdk.program import Program
from anychip_sdk.registry import REFERENCE, OpRegistry

#: what a recipe can name
_POLICY = re.compile(r"[a-z][a-z0-9_.-]*")

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
            BackendBroken: the hook raised, or an answer breaks the contract (types, free <= total, names).
        """
        found: Sequence[object] = self._call("anychip_probe", Sequence)
        problems: list[str] = []
        names: set[str] = set()
        for device in found:
            if not isinstance(device, DeviceInfo):
                problems.append(f"{device!r} is not a DeviceInfo")
                continue
            if device.memory_bytes_total <= 0:
                problems.append(f"{device.name}: memory_bytes_total is {device.memory_bytes_total}, must be above 0")
            if not 0 <= device.memory_bytes_free <= device.memory_bytes_total:
                problems.append(
                    f"{device.name}: memory_bytes_free is {device.memory_bytes_free}, must be between 0 and "
                    f"memory_bytes_total ({device.memory_bytes_total})"
                )
            if device.name in names:
                problems.append(f"{device.name} is listed twice")
            names.add(device.name)
        if problems:
            raise self._broken("anychip_probe", "; ".join(problems))
        return tuple(device for device in found if isinstance(device, DeviceInfo))

    def open(self, device: DeviceInfo, config: DeviceConfig) -> Device:
        """Open a probed device and initialise it."""
        opened = self._call("anychip_open_device", Device, device=device, config=config)
        try:
            opened.init(config)
        except AnychipError:
            raise
        except Exception as error:
            raise self._broken("Device.init", f"{type(error).__name__}: {error}") from error
        memory = opened.memory()
        if not 0 <= memory.bytes_free <= memory.bytes_total:
            text = f"bytes_free is {memory.bytes_free}, must be between 0 and bytes_total ({memory.bytes_total})"
            raise self._broken("Device.memory", text)
        return opened

    def create_kv_pool(self, spec: PoolSpec, device: Device) -> KVPool:
        """The pool, checked against the spec: page size, slots, groups and budget.

        Raises:
            BackendBroken: it is not what was asked for.
        """
        pool = self._call("anychip_create_kv_pool", KVPool, spec=spec, device=device)
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
        if wrong:
            raise self._broken("anychip_create_kv_pool", "; ".join(wrong))
        return pool

    def prepare_weight(self, name: str, tensor: torch.Tensor, op: str, device: Device) -> PreparedWeight:
        return self._call("anychip_prepare_weight", PreparedWeight, name=name, tensor=tensor, op=op, device=device)

    def compiles(self, program: Program) -> tuple[str | None, ...] | None:
        """What the backend's compiler makes of each call: None where it takes it, else why not; None: it has none."""
        found = self._raw("anychip_compiles", program=program)
        if found is None:
            return None
        is_listed = isinstance(found, Sequence) and not isinstance(found, str)
        texts = tuple(found) if is_listed else ()
        are_texts = all(one is None or isinstance(one, str) for one in texts)
        if not is_listed or not are_texts or len(texts) != len(program.calls):
            text = f"returned {found!r}, expected a text or None for each of {len(program.calls)} calls"
            raise self._broken("anychip_compiles", text)
        return texts

    def compile(self, program: Program, context: CompileContext) -> Callable[..., tuple[torch.Tensor, ...]] | None:
        compiled = self._raw("anychip_compile", program=program, context=context)
        if compiled is not None and not callable(compiled):
            raise self._broken("anychip_compile", f"returned {compiled!r}, expected a callable or None")
        return compiled  # type: ignore[no-any-return]

    def diagnose(self) -> tuple[Finding, ...]:
        """What the backend has to say of itself on this machine; empty where it has nothing.

        Raises:
            BackendBroken: the hook raised, or returned anything but findings.
        """
        found = self._raw("anychip_diagnose")
        if found is None:
            return ()
        if not isinstance(found, Sequence) or not all(isinstance(one, Finding) for one in found):
            raise self._broken("anychip_diagnose", f"returned {found!r}, expected a sequence of Finding")
        return tuple(found)

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
            try:
                caller(registry=registry.registrar(provider))
            except Exception as error:
                raise self._broken("anychip_register_ops", f"{type(error).__name__}: {error}") from error
        return registry

    def _checked_fusions(self) -> tuple[Fusion, ...]:
        found = [fusion for answer in self._raw("anychip_fusions") for fusion in answer]
        for fusion in found:
            if not isinstance(fusion, Fusion):
                raise self._broken("anychip_fusions", f"{fusion!r} is not a Fusion")
            if not _POLICY.fullmatch(fusion.policy):
                text = f"fusion '{fusion.name}' has policy '{fusion.policy}', expected a name in lower case"
                raise self._broken("anychip_fusions", text)
        return tuple(found)

    def _raw(self, hook: str, **arguments: Any) -> Any:
        try:
            return getattr(self._manager.hook, hook)(**arguments)
        except AnychipError:
            raise
        except Exception as error:
            raise self._broken(hook, f"{type(error).__name__}: {error}") from error

    def _call(self, hook: str, kind: Callable[..., T], **arguments: Any) -> T:
        answer = self._raw(hook, **arguments)
        if not isinstance(answer, kind):  # type: ignore[arg-type]  # abstract classes are no type[T]
            raise self._broken(hook, f"returned {answer!r}, expected {kind.__name__}")
        return answer  # type: ignore[no-any-return]

    def _broken(self, where: str, what: str) -> BackendBroken:
        return BackendBroken(f"backend '{self.name}' ({self.distribution} {self.version}): {where}: {what}")


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
