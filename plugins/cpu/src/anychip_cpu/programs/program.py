"""A model's step as one call of the native library. Knows its structs; knows no graph."""

from __future__ import annotations

import struct
import weakref
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import torch

from anychip_cpu import native
from anychip_sdk.ops.base import AttentionBatch

#: the structs of program.hpp
GATHER = struct.Struct("=3Q3q")
_STEP = struct.Struct("=9Q6q")
_HEADER = struct.Struct("=2i")


class Kind(IntEnum):
    """InstructionKind of program.hpp."""

    GATHER = 0
    NORM = 1
    MULTIPLY = 2
    HEADS = 3
    ATTEND = 4
    GATE = 5


class Instruction(NamedTuple):
    kind: Kind
    is_selected: bool  #: works on the rows that become logits, else on all tokens
    args: bytes  #: the struct of its kind


class Program:
    """Instructions that the library holds; the logits are what the last one makes.

    Args:
        library: what runs them.
        instructions: in order.
        held: the tensors whose addresses they contain.
        tokens: the most of one step.
        outputs: logits of a row.

    Attributes:
        seconds: float64 by Kind: what each kind of instruction takes is added; None: nothing is timed.
    """

    def __init__(
        self,
        library: native.Library,
        instructions: Sequence[Instruction],
        held: Sequence[torch.Tensor],
        tokens: int,
        outputs: int,
    ) -> None:
        size = library.instruction_bytes
        packed = b"".join(
            (_HEADER.pack(one.kind, one.is_selected) + one.args).ljust(size, b"\0") for one in instructions
        )
        handle = library.program(packed, len(instructions), tokens)
        if handle is None:
            message = f"native program of {len(instructions)} instructions: no memory"
            raise MemoryError(message)
        self._run, self._handle, self._held = library.run, handle, held
        self.tokens, self.outputs = tokens, outputs
        self.seconds: torch.Tensor | None = None
        weakref.finalize(self, library.free, handle)

    def __call__(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        batch: AttentionBatch,
        logit_rows: torch.Tensor,
    ) -> torch.Tensor:
        out = torch.empty((len(logit_rows), self.outputs), dtype=torch.float32)
        wide = [_as(torch.int64, one) for one in (token_ids, positions, slots, logit_rows)]
        narrow = [_as(torch.int32, one) for one in (batch.query_start, batch.context_lens, batch.page_table)]
        status = self._run(
            self._handle,
            _STEP.pack(
                *(one.data_ptr() for one in (*wide, *narrow, out)),
                0 if self.seconds is None else self.seconds.data_ptr(),
                len(token_ids),
                len(logit_rows),
                batch.rows,
                batch.page_size,
                batch.page_table.shape[-1],
                torch.get_num_threads(),
            ),
        )
        if status == 1:
            message = "native program: no memory for its intermediate results"
            raise MemoryError(message)
        if status:
            message = "native program: a token id, position, slot or row is out of range"
            raise IndexError(message)
        return out


def _as(dtype: torch.dtype, numbers: torch.Tensor) -> torch.Tensor:
    return numbers if numbers.dtype == dtype and numbers.is_contiguous() else numbers.to(dtype).contiguous()


__all__ = ["GATHER", "Instruction", "Kind", "Program"]
