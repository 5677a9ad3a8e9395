"""What happens to slots between two forwards, as data and in order. Knows slots; knows no sequence."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Union

from anychip_sdk.kv import KVPool


class ClearSlot(NamedTuple):
    """A sequence begins with nothing: its state is zeros."""

    slot: int


class CopySlot(NamedTuple):
    """A sequence begins with a cached prefix or as a fork, or a snapshot is taken."""

    source: int
    target: int


StateOp = Union[ClearSlot, CopySlot]


def run_state_ops(ops: Iterable[StateOp], pool: KVPool) -> None:
    """One after the other: an operation may read what the one before it wrote."""
    for op in ops:
        if isinstance(op, ClearSlot):
            pool.clear_slots([op.slot])
        else:
            pool.copy_slots([op.source], [op.target])


__all__ = ["ClearSlot", "CopySlot", "StateOp", "run_state_ops"]
