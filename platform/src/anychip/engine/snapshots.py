"""Copies of sequences' slot states at the ends of cached prefixes. Knows slots and nodes; knows no token and no page.

A snapshot of a node holds the state behind the last token of the node's run, in a slot of its own. It is used through
ordered operations only (`state_ops`), so its slot may get another holder as soon as the operation that reads it is
queued.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from anychip.engine.slot_ledger import SlotLedger

if TYPE_CHECKING:
    from anychip.engine.radix_cache import Node


class Snapshots:
    """At most one snapshot per node; the least recently used ones make room, locked node or not."""

    def __init__(self, ledger: SlotLedger) -> None:
        self._ledger = ledger
        self._slots: OrderedDict[Node, int] = OrderedDict()  # the next to be evicted first

    def __contains__(self, node: Node) -> bool:
        return node in self._slots

    @property
    def slots(self) -> Mapping[Node, int]:
        return MappingProxyType(self._slots)

    def use(self, node: Node) -> int:
        """The slot of a node's snapshot, which becomes the last to be evicted."""
        self._slots.move_to_end(node)
        return self._slots[node]

    def add(self, node: Node, slot: int) -> None:
        """Keep a slot that the caller took, for a node without a snapshot."""
        self._slots[node] = slot

    def take(self) -> int | None:
        """A free slot, if need be that of the least recently used snapshot; None: sequences hold all."""
        if self._ledger.slots_free == 0 and self._slots:
            self.drop(next(iter(self._slots)))
        return self._ledger.take()

    def drop(self, node: Node) -> None:
        """Forget a node's snapshot, if it has one."""
        slot = self._slots.pop(node, None)
        if slot is not None:
            self._ledger.give_back(slot)

    def clear(self) -> None:
        for node in list(self._slots):
            self.drop(node)


__all__ = ["Snapshots"]
