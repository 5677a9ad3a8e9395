"""Put a virtual host together as a Stack. Knows the seams; the plugin can't tell it from a real one."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from functools import partial
from pathlib import Path

from anychip_kunlun.emulator.accelerator import Accelerator
from anychip_kunlun.emulator.copies import copy, delay
from anychip_kunlun.emulator.host import Host
from anychip_kunlun.emulator.linear import linear
from anychip_kunlun.emulator.machine import Machine
from anychip_kunlun.emulator.modules import Modules, dispatch_dump
from anychip_kunlun.emulator.profile import VARIABLE, Profile
from anychip_kunlun.emulator.tools import Tools
from anychip_kunlun.stack import Stack


def open_stack(profile: Profile | None = None) -> Stack:
    """A virtual host of that profile; without one, of the settings in ANYCHIP_KUNLUN_EMULATE.

    A process and its children share one host, as they share a machine: with the first device memory that is taken, the
    host's folder goes into the variable. A profile that is given here has a host of its own unless it names one.

    Raises:
        UsageError: the settings are not understood.
    """
    announce = None
    if profile is None:
        profile = Profile.parse(os.environ.get(VARIABLE, ""))
        announce = _announce if profile.host is None else None
    environ = _environment()
    if profile.visible_mismatch:
        environ.update(XPU_VISIBLE_DEVICES="0", CUDA_VISIBLE_DEVICES="1")
    machine = Machine(profile, environ, Host(profile, announce))
    modules = Modules(machine)
    return Stack(
        accelerator=Accelerator(machine),
        device_type="cpu",
        root=machine.host.root,
        environ=environ,
        run=Tools(machine).run,
        has_module=modules.has,
        load=modules.load,
        version=modules.version,
        empty=machine.empty,
        copy=partial(copy, machine),
        delay=partial(delay, machine),
        linear=partial(linear, profile),
        dispatch_dump=partial(dispatch_dump, machine),
        emulated=True,
    )


def close_stack(stack: Stack) -> None:
    """End the threads of a virtual host and leave its folder; tensors that are alive stay readable."""
    stack.accelerator.emulator.close()


def _environment() -> MutableMapping[str, str]:
    """A copy of the process's variables; CUDA's devices are another vendor's where the chip's own are not named."""
    environ = dict(os.environ)
    if "XPU_VISIBLE_DEVICES" not in environ:
        environ.pop("CUDA_VISIBLE_DEVICES", None)
    return environ


def _announce(folder: Path) -> None:
    """Name the host's folder where this process's children see it."""
    settings = [os.environ.get(VARIABLE, ""), f"host={folder}"]
    os.environ[VARIABLE] = ",".join(filter(None, settings))


__all__ = ["close_stack", "open_stack"]
