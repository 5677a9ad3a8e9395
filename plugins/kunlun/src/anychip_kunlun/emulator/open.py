"""Put a virtual host together as a Stack. Knows the seams; the plugin can't tell it from a real one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import MutableMapping
from functools import partial

from anychip_kunlun.emulator.accelerator import Accelerator
from anychip_kunlun.emulator.copies import copy, delay
from anychip_kunlun.emulator.host import PREFIX
from anychip_kunlun.emulator.linear import linear
from anychip_kunlun.emulator.machine import Machine
from anychip_kunlun.emulator.modules import Modules, dispatch_dump
from anychip_kunlun.emulator.profile import VARIABLE, Profile
from anychip_kunlun.emulator.tools import Tools
from anychip_kunlun.stack import Stack

#: variables of the real stack that say nothing about the virtual one
FOREIGN = ("CUDA_VISIBLE_DEVICES", "XPU_VISIBLE_DEVICES", "DISABLE_XPYTORCH")


def open_stack(profile: Profile | None = None) -> Stack:
    """A virtual host of that profile; without one, of the settings in ANYCHIP_KUNLUN_EMULATE.

    All processes with the same settings share one host, as they share a machine: this one's children find the folder
    of the host in the variable.

    Raises:
        UsageError: the settings are not understood.
    """
    environ = _environment()
    if profile is None:
        profile = Profile.parse(os.environ.get(VARIABLE, ""))
        if profile.host is None:
            profile = _share(profile)
    if profile.visible_mismatch:
        environ.update(XPU_VISIBLE_DEVICES="0", CUDA_VISIBLE_DEVICES="1")
    machine = Machine(profile, environ)
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
    """A copy of the process's variables without those of a real stack; `XPU_DUMMY_EVENT` stays."""
    return {name: value for name, value in os.environ.items() if name not in FOREIGN}


def _share(profile: Profile) -> Profile:
    """Name the host's folder where this process's children see it."""
    folder = tempfile.mkdtemp(prefix=PREFIX)
    settings = [os.environ.get(VARIABLE, ""), f"host={folder}"]
    os.environ[VARIABLE] = ",".join(filter(None, settings))
    return Profile.parse(os.environ[VARIABLE])


__all__ = ["close_stack", "open_stack"]
