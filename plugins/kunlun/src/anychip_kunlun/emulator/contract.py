"""What a vendor's op demands of its arguments, checked as its kernels do. Knows error texts; knows no arithmetic."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Concatenate, ParamSpec, Protocol, TypeVar

import torch
from torch.utils._python_dispatch import _disable_current_modes

from anychip_kunlun.emulator.machine import Machine

Given = ParamSpec("Given")
Result = TypeVar("Result")

#: what the kernel library answers to arguments that it can't take
BAD_ARGUMENT = -1

FLOATS = (torch.float16, torch.bfloat16, torch.float32)
HEAD_DIMS = (32, 64, 80, 96, 112, 120, 128, 192, 256, 512)


class HasMachine(Protocol):
    machine: Machine


Owner = TypeVar("Owner", bound=HasMachine)


def vendor_op(
    function: Callable[Concatenate[Owner, Given], Result],
) -> Callable[Concatenate[Owner, Given], Result]:
    """A function of a vendor module: what it computes with is hidden from captures, it enters them as a whole."""

    @functools.wraps(function)
    def call(self: Owner, /, *args: Given.args, **kwargs: Given.kwargs) -> Result:
        if not torch._C._len_torch_dispatch_stack():
            return function(self, *args, **kwargs)
        with _disable_current_modes():
            return function(self, *args, **kwargs)

    return call


class Contract:
    """The demands of one op; the first that is not met raises the vendor's error, with the reason behind it."""

    def __init__(self, op: str) -> None:
        self.op = op

    def need(self, holds: bool, why: str) -> None:
        if not holds:
            message = f"Check 0 == ret failed, left operand={BAD_ARGUMENT}, {self.op} failed ({why})"
            raise ValueError(message)

    def contiguous(self, **tensors: torch.Tensor | None) -> None:
        for name, tensor in tensors.items():
            if tensor is not None and not tensor.is_contiguous():
                self.need(False, f"{name} is not contiguous")

    def dtype(self, allowed: Sequence[torch.dtype], **tensors: torch.Tensor | None) -> None:
        for name, tensor in tensors.items():
            if tensor is not None and tensor.dtype not in allowed:
                self.need(False, f"{name} is {_name(tensor.dtype)}, not {' or '.join(map(_name, allowed))}")

    def shape(self, shape: Sequence[int], **tensors: torch.Tensor | None) -> None:
        for name, tensor in tensors.items():
            if tensor is not None and tuple(tensor.shape) != tuple(shape):
                self.need(False, f"{name} is {tuple(tensor.shape)}, not {tuple(shape)}")

    def head_dim(self, head_dim: int) -> None:
        self.need(head_dim in HEAD_DIMS, f"head size {head_dim} is none of {HEAD_DIMS}")

    def on_both_sides(self, name: str, host: torch.Tensor | None, device: torch.Tensor | None) -> list[int]:
        """int32 offsets or lengths, equal on host and card; their values."""
        if host is None or device is None:
            self.need(False, f"{name} is needed on both sides")
            return []
        self.dtype((torch.int32,), **{f"{name}_cpu": host, f"{name}_xpu": device})
        self.contiguous(**{f"{name}_cpu": host, f"{name}_xpu": device})
        values: list[int] = host.tolist()
        self.need(values == device.tolist(), f"{name}_cpu and {name}_xpu differ")
        return values

    def lod(
        self, name: str, host: torch.Tensor | None, device: torch.Tensor | None, total: int | None = None
    ) -> list[int]:
        """Offsets of ragged rows: from 0, never falling, up to `total`."""
        values = self.on_both_sides(name, host, device)
        rising = all(first <= second for first, second in pairwise(values))
        self.need(len(values) > 1 and values[0] == 0 and rising, f"{name} is no lod: {values[:8]}")
        self.need(total is None or values[-1] == total, f"{name} ends at {values[-1]}, there are {total} rows")
        return values


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


__all__ = ["BAD_ARGUMENT", "FLOATS", "HEAD_DIMS", "Contract", "vendor_op"]
