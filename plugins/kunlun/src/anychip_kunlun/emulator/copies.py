"""Copies between host and cards, deferred where the stack defers them. Knows no op.

A queued copy holds addresses, as the chip's does, not tensors: memory that was freed or handed to another owner before
the copy ran is found then, and is an error of the card.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from anychip_kunlun.emulator.machine import Machine
from anychip_kunlun.emulator.memory import Block, CachingAllocator
from anychip_kunlun.emulator.streams import Stream


class Side(NamedTuple):
    """One side of a queued copy."""

    tensor: torch.Tensor
    allocator: CachingAllocator
    block: Block
    uses: int

    def is_current(self) -> bool:
        """Whether the memory still belongs to the tensor that the copy was asked for."""
        return self.allocator.holds(self.block, self.uses)


def copy(machine: Machine, dst: torch.Tensor, src: torch.Tensor, stream: Stream | None) -> None:
    """dst <- src on `stream`, or on the current one; only memory of cards is used after the call."""
    src.expand(dst.shape)  # raises what torch raises for shapes that don't fit
    machine.check_process()
    machine.last_op = "copy"
    stream = machine.current_stream() if stream is None else stream
    if machine.thread.recorder is not None:
        machine.thread.recorder.add(lambda: _copy(dst, src), [dst])
        return
    sides = [_side(machine, tensor) for tensor in (dst, src)]
    if None in sides or stream.is_default:
        machine.raise_errors(stream.index)
        stream.put(lambda: _copy(dst, src))
        stream.drain()
        return
    stream.put(_deferred(machine, stream, [side for side in sides if side is not None]))


def delay(machine: Machine, stream: Stream | None, seconds: float) -> None:
    """Keep a stream busy."""
    stream = machine.current_stream() if stream is None else stream
    stream.put(lambda: time.sleep(seconds))


def _deferred(machine: Machine, stream: Stream, sides: list[Side]) -> Callable[[], None]:
    target, source = sides

    def run() -> None:
        if not (target.is_current() and source.is_current()):
            machine.fail(stream.index, 700, "copy: memory that was freed before the copy was done")
        _copy(target.tensor, source.tensor)

    return run


def _copy(dst: torch.Tensor, src: torch.Tensor) -> None:
    with torch.inference_mode(dst.is_inference()):
        dst.copy_(src)


def _side(machine: Machine, tensor: torch.Tensor) -> Side | None:
    """None: the host's, or a result of torch's own ops."""
    owner = machine.owner(tensor)
    if owner is None:
        return None
    card, block = owner
    return Side(_by_address(tensor, block), card.allocator, block, block.uses)


def _by_address(tensor: torch.Tensor, block: Block) -> torch.Tensor:
    """The same memory, without a hold on its block."""
    offset = block.start // tensor.itemsize + tensor.storage_offset()
    storage = block.segment.bytes.untyped_storage()
    return torch.empty(0, dtype=tensor.dtype).set_(storage, offset, tensor.shape, tensor.stride())


__all__ = ["Side", "copy", "delay"]
