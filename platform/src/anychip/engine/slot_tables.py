"""Which slot each sequence holds, and where its state comes from. Knows slots and the tree; knows no page and no queue.

Only models with slot states have this table. All that is done to slots is queued as operations, which run in order
before the next forward. So a slot can be given back while an operation that reads it is still queued: whatever its next
holder writes comes later.
"""

from __future__ import annotations

from anychip.engine.radix_cache import Match, RadixCache
from anychip.engine.sequence import Sequence
from anychip.engine.slot_ledger import SlotLedger
from anychip.engine.snapshots import Snapshots
from anychip.engine.state_ops import NO_SLOT, ClearSlot, CopySlot, StateOp
from anychip_sdk.errors import AnychipError


class SlotsExhausted(AnychipError):
    """Sequences hold all slots; nothing was taken."""

    def __init__(self, slots_total: int) -> None:
        super().__init__(f"a sequence needs a slot for its state, and running sequences hold all {slots_total}")


class SlotTables:
    """The slots of all sequences over one pool.

    Args:
        slots: of the pool, for sequences and snapshots.
        page_size: snapshots are taken behind whole pages only.
    """

    def __init__(self, slots: int, page_size: int) -> None:
        self.ledger = SlotLedger(slots)
        self.snapshots = Snapshots(self.ledger)
        self._page_size = page_size
        self._ops: list[StateOp] = []

    def take_ops(self) -> tuple[StateOp, ...]:
        """What must be done before the next forward, in order; the caller has to do it."""
        ops, self._ops = tuple(self._ops), []
        return ops

    def open(self, sequence: Sequence, match: Match) -> None:
        """Give a sequence and its forks-to-be a slot each; the sequence's gets the state behind the match.

        The forks' are taken now, so that a fork never waits.

        Args:
            match: ends where a node with a snapshot does, or is empty.

        Raises:
            SlotsExhausted: too few slots are free, even without snapshots; `close` gives back what was taken.
        """
        source = None if match.node is None else self.snapshots.use(match.node)
        for member in (sequence, *sequence.forks):
            slot = self.snapshots.take()
            if slot is None:
                raise SlotsExhausted(self.ledger.slots_total)
            member.slot = slot
        if source is None:
            self._ops.append(ClearSlot(sequence.slot))
        elif source != sequence.slot:  # equal: the snapshot made room for its own reader
            self._ops.append(CopySlot(source, sequence.slot))

    def fork(self, parent: Sequence, child: Sequence) -> None:
        self._ops.append(CopySlot(parent.slot, child.slot))

    def close(self, sequence: Sequence) -> None:
        for member in (sequence, *sequence.forks):
            if member.slot != NO_SLOT:
                self.ledger.give_back(member.slot)
                member.slot = NO_SLOT

    def snapshot(self, sequence: Sequence, cache: RadixCache) -> None:
        """Copy the state at the end of the sequence's cached run, which is all that it has computed.

        To be called before the sequence is scheduled again: its slot changes with its next tokens.
        """
        node = sequence.node
        if node is None or sequence.cached_pages * self._page_size != sequence.computed:
            return
        if node in self.snapshots:
            self.snapshots.use(node)
            return
        slot = self.snapshots.take()
        if slot is None:
            return
        self._ops.append(CopySlot(sequence.slot, slot))
        self.snapshots.add(node, slot)
        cache.version += 1

    def forget(self) -> None:
        """Drop all snapshots: queued operations may never have run."""
        self.snapshots.clear()
        self._ops = []


__all__ = ["SlotTables", "SlotsExhausted"]
