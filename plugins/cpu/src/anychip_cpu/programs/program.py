"""A model's step, or a piece of it, as one call of the native library. Knows its structs; knows no call of a graph."""

from __future__ import annotations

import struct
import weakref
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import torch

from anychip_cpu import native
from anychip_sdk.step import GroupEntry, Paged, Step

#: the structs of program.hpp
GATHER = struct.Struct("=3Q3q")
_STEP = struct.Struct("=8Q6q")
_GROUP = struct.Struct("=2Qq")
_HEADER = struct.Struct("=3i4x")


class Kind(IntEnum):
    """InstructionKind of program.hpp."""

    GATHER = 0
    NORM = 1
    MULTIPLY = 2
    HEADS = 3
    ATTEND = 4
    GATE = 5
    ROUTE = 6
    MIX = 7
    CONVOLVE = 8
    DELTA = 9


class Instruction(NamedTuple):
    kind: Kind
    is_selected: bool  #: works on the rows that become logits, else on all tokens
    group: int  #: of states, whose slots and pages it reads
    args: bytes  #: the struct of its kind


class NativeProgram:
    """Instructions that the library holds.

    Args:
        library: what runs them.
        instructions: in order.
        held: the tensors whose addresses they contain.
        tokens: the most of one step.

    Attributes:
        seconds: float64 by Kind: what each kind of instruction takes is added; None: nothing is timed.
    """

    def __init__(
        self,
        library: native.Library,
        instructions: Sequence[Instruction],
        held: Sequence[torch.Tensor],
        tokens: int,
    ) -> None:
        size = library.instruction_bytes
        packed = b"".join(
            (_HEADER.pack(one.kind, one.is_selected, one.group) + one.args).ljust(size, b"\0") for one in instructions
        )
        handle = library.program(packed, len(instructions), tokens)
        if handle is None:
            message = f"native program of {len(instructions)} instructions: no memory"
            raise MemoryError(message)
        self._run, self._handle, self._held = library.run, handle, held
        self.tokens = tokens
        self.seconds: torch.Tensor | None = None
        weakref.finalize(self, library.free, handle)

    def __call__(self, step: Step, logits: torch.Tensor | None) -> None:
        """Run a step of at most so many tokens; `logits` is where these go, None where none are made."""
        wide = [_as(torch.int64, one) for one in (step.token_ids, step.positions, step.logit_rows)]
        narrow = [_as(torch.int32, one) for one in (step.query_start, step.context_lens)]
        groups = [_group(entry) for entry in step.groups]
        status = self._run(
            self._handle,
            _STEP.pack(
                *(one.data_ptr() for one in (*wide, *narrow)),
                0,  # the groups are handed over beside
                0 if logits is None else logits.data_ptr(),
                0 if self.seconds is None else self.seconds.data_ptr(),
                len(wide[1]),
                len(wide[2]),
                step.rows,
                step.page_size,
                torch.get_num_threads(),
                len(step.groups),
            ),
            b"".join(map(_packed, groups)),
        )
        if status == 1:
            message = "native program: no memory for its intermediate results"
            raise MemoryError(message)
        if status:
            message = "native program: a token id, position, slot or row is out of range"
            raise IndexError(message)


def _group(entry: GroupEntry) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Slots and page table; None: the group keeps none."""
    slots = _as(torch.int64, entry.slots)
    return slots, _as(torch.int32, entry.page_table) if isinstance(entry, Paged) else None


def _packed(group: tuple[torch.Tensor, torch.Tensor | None]) -> bytes:
    """GroupArgs."""
    slots, table = group
    return _GROUP.pack(slots.data_ptr(), *((0, 0) if table is None else (table.data_ptr(), table.shape[-1])))


def _as(dtype: torch.dtype, numbers: torch.Tensor) -> torch.Tensor:
    return numbers if numbers.dtype == dtype and numbers.is_contiguous() else numbers.to(dtype).contiguous()


__all__ = ["GATHER", "Instruction", "Kind", "NativeProgram"]
