"""Ops on states in slots in the native library. Knows the structs of recurrent.hpp; leaves the rest to references."""

from __future__ import annotations

import struct
from typing import Any

import torch

from anychip_cpu import native
from anychip_sdk import ops
from anychip_sdk.step import Step

KERNEL_MAX, KEY_DIM_MAX = 16, 256
_CONVOLVE = struct.Struct("=5Q4q2Q2q2q")
_DELTA = struct.Struct("=9Q10q2Q2qd2q")

Pair = tuple[torch.Tensor, torch.Tensor]


class Recurrent:
    """One method for each op. A token's bits depend on its row's state and tokens alone.

    Args:
        library: the native kernels; None: the references do everything.
    """

    def __init__(self, library: native.Library | None) -> None:
        self._library = library

    def causal_conv_silu(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        history: torch.Tensor,
        step: Step,
        group: int = 0,
    ) -> Pair:
        library = self._library
        if library is None or not can_convolve(x, weight, bias, history):
            answer: Pair = ops.causal_conv_silu.reference(x, weight, bias, history, step, group)
            return answer
        out = torch.empty(x.shape, dtype=x.dtype)
        rows = SlotRows(step, group)
        _expect_slots(library.convolve(convolve_args(x, weight, bias, out, history, rows)), history)
        return out, history

    def gated_delta_rule(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        a: torch.Tensor,
        b: torch.Tensor,
        a_log: torch.Tensor,
        dt_bias: torch.Tensor,
        sums: torch.Tensor,
        step: Step,
        eps: float,
        group: int = 0,
    ) -> Pair:
        library = self._library
        if library is None or not can_move(q, k, v, a, b, a_log, dt_bias, sums):
            given = (q, k, v, a, b, a_log, dt_bias, sums, step, eps, group)
            answer: Pair = ops.gated_delta_rule.reference(*given)
            return answer
        out = torch.empty(v.shape, dtype=v.dtype)
        rows = SlotRows(step, group)
        _expect_slots(library.delta(delta_args((q, k, v, a, b), (a_log, dt_bias), out, sums, rows, eps)), sums)
        return out, sums


class SlotRows:
    """The struct of that name, of a step; None: a program brings it."""

    def __init__(self, step: Step | None = None, group: int = 0) -> None:
        self._held: tuple[torch.Tensor, ...] = ()
        self.rows = 0
        if step is not None:
            slots = step.slotted(group).slots
            self._held = step.query_start.to(torch.int32).contiguous(), slots.to(torch.int64).contiguous()
            self.rows = step.rows

    def fields(self, slot_count: int) -> tuple[int, int, int, int]:
        start, slots = (one.data_ptr() for one in self._held) if self._held else (0, 0)
        return start, slots, self.rows, slot_count


def can_convolve(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, history: torch.Tensor) -> bool:
    of_one_dtype = x.dtype in native.DTYPES and all(
        one is None or (one.dtype == x.dtype and one.is_contiguous()) for one in (weight, bias)
    )
    return of_one_dtype and x.stride(-1) == 1 and weight.shape[1] <= KERNEL_MAX and _is_kept(history)


def convolve_args(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    history: torch.Tensor,
    rows: SlotRows,
) -> bytes:
    """ConvolveArgs for what `can_convolve`."""
    pointers = (x.data_ptr(), weight.data_ptr(), 0 if bias is None else bias.data_ptr(), out.data_ptr())
    sizes = (x.shape[1], history.shape[1], x.stride(0), history.stride(0))
    kept = history.data_ptr(), *sizes, *rows.fields(len(history))
    return _CONVOLVE.pack(*pointers, *kept, torch.get_num_threads(), native.DTYPES[x.dtype])


def can_move(*tensors: torch.Tensor) -> bool:
    q, k, v, a, b, a_log, dt_bias, sums = tensors
    of_one_dtype = v.dtype in native.DTYPES and all(one.dtype == v.dtype for one in (q, k, a, b))
    are_even = all(one.stride(-1) == 1 and one.stride(1) == one.shape[2] for one in (q, k, v))
    are_even = are_even and a.stride(1) == b.stride(1) == 1
    are_wide = all(one.dtype == torch.float32 and one.is_contiguous() for one in (a_log, dt_bias))
    return of_one_dtype and are_even and are_wide and k.shape[2] <= KEY_DIM_MAX and _is_kept(sums)


def delta_args(
    inputs: tuple[torch.Tensor, ...],
    constants: tuple[torch.Tensor, torch.Tensor],
    out: torch.Tensor,
    sums: torch.Tensor,
    rows: SlotRows,
    eps: float,
) -> bytes:
    """DeltaArgs for what `can_move`; `inputs` are q, k, v, a and b, `constants` a_log and dt_bias."""
    pointers = (one.data_ptr() for one in (*inputs, *constants, out, sums))
    sizes = (inputs[0].shape[1], *sums.shape[1:])
    strides: tuple[Any, ...] = (*(one.stride(0) for one in inputs), sums.stride(0))
    threads, dtype = torch.get_num_threads(), native.DTYPES[out.dtype]
    return _DELTA.pack(*pointers, *sizes, *strides, *rows.fields(len(sums)), eps, threads, dtype)


def _is_kept(state: torch.Tensor) -> bool:
    """float32, and a slot's numbers one after the other."""
    return state.dtype == torch.float32 and state[0].is_contiguous()


def _expect_slots(status: int, state: torch.Tensor) -> None:
    if status:
        message = f"native kernels: a slot is not below {len(state)}"
        raise IndexError(message)


__all__ = ["Recurrent", "SlotRows", "can_convolve", "can_move", "convolve_args", "delta_args"]
