"""The backend on virtual hosts of any profile, closed afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from anychip_kunlun.backend import KunlunPlugin
from anychip_kunlun.emulator import Profile, close_stack, open_stack
from anychip_kunlun.stack import Stack
from anychip_sdk import DeviceConfig, load_backend
from anychip_sdk.backend import Backend
from anychip_sdk.device import Device

MIB = 1 << 20


@dataclass
class Rig:
    """A backend, the stack under it and its first device once it is opened."""

    stack: Stack
    plugin: KunlunPlugin
    backend: Backend

    def open(self, name: str | None = None) -> Device:
        return self.backend.open(self.backend.find_device(name), DeviceConfig(emulate=True))

    @property
    def machine(self) -> Any:
        return self.stack.accelerator.emulator


MakeRig = Callable[..., Rig]


@pytest.fixture
def make_rig() -> Iterator[MakeRig]:
    stacks: list[Stack] = []

    def make(**settings: Any) -> Rig:
        stack = open_stack(Profile(**{"memory_bytes": 64 * MIB, **settings}))
        stacks.append(stack)
        plugin = KunlunPlugin(lambda: stack)
        backend = load_backend("kunlun", plugin, distribution="anychip-kunlun", version="0.1.0")
        return Rig(stack, plugin, backend)

    yield make
    for stack in stacks:
        close_stack(stack)


@pytest.fixture
def rig(make_rig: MakeRig) -> Rig:
    return make_rig()


@pytest.fixture
def device(rig: Rig) -> Iterator[Device]:
    opened = rig.open()
    yield opened
    opened.close()
