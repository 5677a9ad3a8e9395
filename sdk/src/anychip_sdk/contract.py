"""Register one plugin and check what it says against the contract. Knows the hooks; knows no device."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple

import pluggy
import torch
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from anychip_sdk import defaults, hooks
from anychip_sdk.answers import hook_problem, info_problems
from anychip_sdk.errors import BackendBroken, BackendIncompatible, PreconditionFailed
from anychip_sdk.guard import blaming, shown
from anychip_sdk.hooks import API_VERSION, PROJECT
from anychip_sdk.info import BackendInfo
from anychip_sdk.registry import REFERENCE


class Registered(NamedTuple):
    """A plugin with the defaults behind it, and what it says of itself."""

    manager: pluggy.PluginManager
    info: BackendInfo


def register(name: str, plugin: ModuleType | object, where: str) -> Registered:
    """Put a plugin before the defaults; its hooks exist, the required ones are there, its name is right.

    Raises:
        BackendBroken: all that is wrong, beginning with `where`.
    """
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(hooks)
    manager.register(defaults, REFERENCE)
    with blaming(_fault(where)):
        manager.register(plugin, name)
    _check_hooks(manager, name, where)
    with blaming(_fault(f"{where}: anychip_backend")):
        info = manager.hook.anychip_backend()
    _check_info(info, name, where)
    return Registered(manager, info)


def register_emulator(name: str, plugin: ModuleType | object, where: str) -> Registered:
    """The emulator that a plugin offers, registered in its place.

    Raises:
        PreconditionFailed: it offers none.
        BackendBroken: the plugin or its emulator breaks the contract.
    """
    registered = register(name, plugin, where)
    with blaming(_fault(f"{where}: anychip_emulator")):
        emulator = registered.manager.hook.anychip_emulator()
    if emulator is None:
        message = f"{where} has no emulator"
        raise PreconditionFailed(message, hint="remove backend.emulate and --emulate, or name another backend")
    return register(name, emulator, f"{where}: its emulator")


def check_ranges(info: BackendInfo, where: str) -> None:
    """The plugin was written for this API and for the torch that is installed.

    Raises:
        BackendIncompatible: it was not.
    """
    if Version(API_VERSION) not in SpecifierSet(info.api):
        message = f"{where} was written for API {info.api}; this is API {API_VERSION}"
        raise BackendIncompatible(message, hint="install versions of anychip-sdk and the plugin that fit each other")
    torch_version = Version(torch.__version__).base_version
    if torch_version not in SpecifierSet(info.requirements.torch):
        message = f"{where} needs torch {info.requirements.torch}; torch {torch_version} is installed"
        raise BackendIncompatible(message)


def _check_hooks(manager: pluggy.PluginManager, name: str, where: str) -> None:
    """Every hook exists and is a plain function, and the required ones are there; all problems at once."""
    problems = []
    for hook in sorted(vars(manager.hook)):
        caller = getattr(manager.hook, hook)
        if hook.startswith("_") or caller.has_spec():
            continue
        near = difflib.get_close_matches(hook, hooks.HOOKS, n=1)
        problems.append(f"there is no hook '{hook}'." + (f" Did you mean '{near[0]}'?" if near else ""))
    for hook in hooks.HOOKS:
        implementations = [one for one in getattr(manager.hook, hook).get_hookimpls() if one.plugin_name == name]
        if hook in hooks.REQUIRED and not implementations:
            problems.append(f"the required hook '{hook}' is missing")
        for one in implementations:
            wraps = "wraps other hooks; only plain ones have an answer" if one.wrapper or one.hookwrapper else None
            problem = wraps or hook_problem(one.function)
            if problem is not None:
                problems.append(f"'{hook}' {problem}")
    if problems:
        message = f"{where}: " + "; ".join(problems)
        raise BackendBroken(message)


def _check_info(info: object, name: str, where: str) -> None:
    if not isinstance(info, BackendInfo):
        message = f"{where}: anychip_backend returned {shown(info)}, expected BackendInfo"
        raise BackendBroken(message)
    with blaming(_fault(f"{where}: anychip_backend")):
        problems = info_problems(info, name)
    if problems:
        message = f"{where}: {'; '.join(problems)}"
        raise BackendBroken(message)


def _fault(where: str) -> Callable[[str], BackendBroken]:
    return lambda what: BackendBroken(f"{where}: {what}")


__all__ = ["Registered", "check_ranges", "register", "register_emulator"]
