"""Tensors to the device and back, so that the host waits for one step and for none behind it. Knows no plan."""

from __future__ import annotations

import torch

from anychip_sdk.device import Device, Event


class Transfers:
    """Copies of one device's steps; where the device runs at once, they are torch's own.

    What comes back takes a stream of its own: without one it would follow all that was submitted meanwhile. It is asked
    for when the step is done, as ordinary host memory is only complete when a copy returns; the next step runs then.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._stream = device.create_stream() if device.capabilities.async_streams else None

    @property
    def are_direct(self) -> bool:
        """Whether the host reads what a step left where it is."""
        return self._stream is None

    def to_device(self, values: torch.Tensor) -> torch.Tensor:
        """These values for what is submitted next; doesn't wait for what was submitted before."""
        if self._stream is None:
            return values.to(self._device.torch_device)
        target = torch.empty_like(values, device=self._device.torch_device)
        self._device.copy(target, values)
        return target

    def mark(self) -> Event | None:
        """The end of what was submitted so far; None where it is done already."""
        return None if self._stream is None else self._device.record()

    def wait(self, mark: Event | None) -> None:
        """Until what was submitted before the mark is done; raises an error of the device that came late."""
        if mark is None:
            self._device.synchronize()
        else:
            mark.synchronize()

    def to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """What a step left on the device, when that step is done."""
        if self._stream is None:
            return tensor
        target = torch.empty_like(tensor, device="cpu")
        self._device.copy(target, tensor, self._stream)
        return target


__all__ = ["Transfers"]
