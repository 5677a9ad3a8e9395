"""A device on which what a step leaves can be read only when the step was waited for. Knows no runner and no plan.

It computes at once, in host memory, as all that is tested here runs in order on a chip too. What it emulates is what
the host may see: a tensor of work that nobody has waited for is copied back as POISON, and reading it directly is an
error, as is waiting for anything while a step is submitted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from anychip_sdk import load_backend
from anychip_sdk.backend import Backend
from anychip_sdk.device import Capabilities, Device, DeviceConfig, DeviceInfo, Event, HostEvent, HostStream, Stream
from anychip_sdk.hooks import hookimpl
from anychip_sdk.testing.device import ReferenceDevice
from support.plans import StubPlugin

POISON = -999


class LateEvent(HostEvent):
    """Done when somebody has waited for it."""

    def __init__(self, device: LateDevice, number: int) -> None:
        super().__init__()
        self._device = device
        self._number = number

    def query(self) -> bool:
        return self._device.done >= self._number

    def synchronize(self) -> None:
        self._device.forbid("an event was waited for")
        self._device.reach(self._number)


class LateDevice(ReferenceDevice):
    """
    Attributes:
        recorded: the number of the last event.
        done: the number of the last event that is done.
        is_submitting: nothing may be waited for.
        waited: the numbers of events, in the order in which they became done.
    """

    def __init__(self, name: str, capacity_bytes: int, capabilities: Capabilities) -> None:
        super().__init__(name, capacity_bytes)
        self._capabilities = capabilities
        self.recorded = 0
        self._written: dict[int, int] = {}  # address: the event behind the work that wrote there
        self.done = 0
        self.waited: list[int] = []
        self.is_submitting = False

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    def create_stream(self, priority: int = 0) -> Stream:
        return HostStream()

    def record(self) -> Event:
        self.recorded += 1
        return LateEvent(self, self.recorded)

    def synchronize(self) -> None:
        self.forbid("the device was waited for")
        self.reach(self.recorded)

    def copy(self, dst: torch.Tensor, src: torch.Tensor, stream: Stream | None = None) -> None:
        if stream is None:
            dst.copy_(src)  # in order, and the source may change at once
            self.wrote(dst)
            return
        dst.copy_(src)
        if self.is_late(src):
            dst.fill_(POISON)
        self._written.pop(dst.untyped_storage().data_ptr(), None)  # what was there before was another's

    def wrote(self, *tensors: torch.Tensor) -> None:
        """Work since the last event left these."""
        self._written.update((one.untyped_storage().data_ptr(), self.recorded + 1) for one in tensors)

    def is_late(self, tensor: torch.Tensor) -> bool:
        return self._written.get(tensor.untyped_storage().data_ptr(), 0) > self.done

    def reach(self, number: int) -> None:
        self.waited.append(number)
        self.done = max(self.done, number)

    def forbid(self, what: str) -> None:
        assert not self.is_submitting, f"{what} while a step was submitted"


class _Watch(TorchDispatchMode):
    """Notes what torch's ops leave on the device."""

    def __init__(self, device: LateDevice) -> None:
        super().__init__()
        self._device = device

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        self._device.wrote(*(one for one in tree_leaves(result) if isinstance(one, torch.Tensor)))
        return result


class LatePlugin(StubPlugin):
    """The references on a LateDevice."""

    opened: LateDevice

    def __init__(self) -> None:
        super().__init__("late", async_streams=True)

    @hookimpl
    def anychip_open_device(self, device: DeviceInfo, config: DeviceConfig) -> Device:
        self.opened = LateDevice("late", device.memory_bytes_total, device.capabilities)
        return self.opened


def late_backend() -> tuple[Backend, LatePlugin]:
    plugin = LatePlugin()
    return load_backend("late", plugin, distribution="anychip-late", version="0.1.0"), plugin


@contextmanager
def watched(device: LateDevice, runner: Any, model: Any) -> Iterator[None]:
    """Within, the runner's steps are watched, and reading what is late on the host is an error."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "submit", _watched(device, runner.submit))
        patch.setattr(runner, "_model", replace(model, forward=_unwatched(device, model.forward)))
        patch.setattr(torch.Tensor, "tolist", _checked(device, torch.Tensor.tolist))
        yield


def _watched(device: LateDevice, submit: Callable[..., Any]) -> Callable[..., Any]:
    def call(plan: Any) -> Any:
        device.is_submitting = True
        try:
            with _Watch(device):
                return submit(plan)
        finally:
            device.is_submitting = False

    return call


def _unwatched(device: LateDevice, forward: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The references of ops read lengths on the host, as kernels of a chip don't."""

    def call(step: Any) -> torch.Tensor:
        done, device.done = device.done, 1 << 60
        try:
            return forward(step)
        finally:
            device.done = done

    return call


def _checked(device: LateDevice, tolist: Callable[..., Any]) -> Callable[..., Any]:
    def call(tensor: torch.Tensor) -> Any:
        assert not device.is_late(tensor), "a tensor was read on the host before its step was waited for"
        return tolist(tensor)

    return call


__all__ = ["POISON", "LateDevice", "LatePlugin", "late_backend", "watched"]
