"""Which slots of a pool are free. One number is a slot of every slot group. Knows numbers; knows no holder."""

from __future__ import annotations


class SlotLedger:
    """A free list: a slot has one holder or none."""

    def __init__(self, slots: int) -> None:
        self.slots_total = slots
        self._free = list(range(slots - 1, -1, -1))  # popped from the end: low numbers first
        self._is_held = [False] * slots

    @property
    def slots_free(self) -> int:
        return len(self._free)

    def take(self) -> int | None:
        """A free slot, with whatever its last holder left in it; None where there is none."""
        if not self._free:
            return None
        slot = self._free.pop()
        self._is_held[slot] = True
        return slot

    def give_back(self, slot: int) -> None:
        """
        Raises:
            ValueError: nobody holds it.
        """
        if not 0 <= slot < self.slots_total or not self._is_held[slot]:
            message = f"slot {slot} is not held, expected a held one of {self.slots_total} slots"
            raise ValueError(message)
        self._is_held[slot] = False
        self._free.append(slot)


__all__ = ["SlotLedger"]
