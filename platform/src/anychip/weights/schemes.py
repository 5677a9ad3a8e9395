"""How a matrix is held on the device: its integers and what shares a scale. Knows storage names; reads no tensor."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import torch

from anychip_sdk.ops.quantized import PACKED

Quantization = Literal["none", "auto", "int8", "int4", "int4-128"]

#: GGUF's storages that an op takes as they are
EIGHT_BITS = frozenset({"Q8_0"})
FOUR_BITS = frozenset({"Q4_0", "Q4_1"})


@dataclass(frozen=True)
class Part:
    """One tensor of a quantized matrix."""

    name: str  #: weight, scale or minimum, as the op's argument is called
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Scheme:
    """How one matrix is held. `group`: neighbours of a row that share a scale; None: the whole row does."""

    bits: Literal[4, 8]
    group: int | None = None
    has_minimum: bool = False
    is_stored: bool = False  #: the checkpoint's own integers and scales

    @property
    def name(self) -> str:
        return f"int{self.bits}"

    def __str__(self) -> str:
        scales = "a scale per row" if self.group is None else f"groups of {self.group}"
        return f"{self.name}, {scales}" + (", as stored" if self.is_stored else "")

    def parts(self, *shape: int) -> tuple[Part, ...]:
        """What a matrix, or a stack of them, becomes, in the order of the op's arguments."""
        *rows, columns = shape
        groups = 1 if self.group is None else columns // self.group
        if self.bits == 8:
            return Part("weight", shape, torch.int8), Part("scale", (*rows, groups), torch.float32)
        parts = (Part("weight", (*rows, columns // 2), torch.uint8), Part("scale", (*rows, groups), torch.float16))
        return (*parts, Part("minimum", (*rows, groups), torch.float16)) if self.has_minimum else parts

    def problem(self, columns: int) -> str:
        """What keeps a matrix of so many columns from being held so; empty where nothing does."""
        if self.group is None or columns % self.group == 0:
            return ""
        return f"{columns} columns are no multiple of the group of {self.group}"


def choose(quantization: Quantization, storages: Collection[str], *, is_head: bool) -> Scheme | None:
    """The scheme of a matrix that is made of tensors in these storages; None: it stays in the model's dtype.

    Integers of the file are taken as they are where there is an op for them: logits have one of 8 bits only, since the
    last product decides between near tokens.
    """
    kinds = frozenset(storages)
    if quantization == "none" or (quantization == "auto" and not kinds <= EIGHT_BITS | FOUR_BITS):
        return None
    if kinds <= EIGHT_BITS and (quantization in ("auto", "int8") or is_head):
        return Scheme(8, PACKED, is_stored=True)
    if quantization == "int8" or is_head:
        return Scheme(8)
    if kinds <= FOUR_BITS:
        return Scheme(4, PACKED, has_minimum="Q4_1" in kinds, is_stored=True)
    if quantization == "auto":  # both kinds, joined into one matrix: 8 bits hold either
        return Scheme(8, PACKED)
    return Scheme(4, 4 * PACKED if quantization == "int4-128" else PACKED, has_minimum=True)


__all__ = ["EIGHT_BITS", "FOUR_BITS", "Part", "Quantization", "Scheme", "choose"]
