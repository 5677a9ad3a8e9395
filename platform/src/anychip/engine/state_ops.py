"""What happens to slots between two forwards, as data and in order. Knows slots; knows no sequence."""

from __future__ import annotations

from typing import Union

import msgspec

NO_SLOT = -1


class ClearSlot(msgspec.Struct, frozen=True, tag="clear"):
    """A sequence begins with nothing: its state is zeros."""

    slot: int


class CopySlot(msgspec.Struct, frozen=True, tag="copy"):
    """A sequence begins with a cached prefix or as a fork, or a snapshot is taken."""

    source: int
    target: int


StateOp = Union[ClearSlot, CopySlot]

__all__ = ["NO_SLOT", "ClearSlot", "CopySlot", "StateOp"]
