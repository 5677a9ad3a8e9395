"""The free list of slots against a plain set."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anychip.engine.slot_ledger import SlotLedger


@given(st.integers(0, 6), st.lists(st.integers(-1, 7), max_size=40))
def test_a_slot_has_one_holder_or_none(total: int, actions: list[int]) -> None:
    """-1 takes a slot, any other number gives that one back."""
    ledger, held = SlotLedger(total), set[int]()
    for action in actions:
        if action == -1:
            slot = ledger.take()
            assert (slot is None) == (len(held) == total)
            if slot is not None:
                assert slot not in held
                assert 0 <= slot < total
                held.add(slot)
        elif action in held:
            ledger.give_back(action)
            held.remove(action)
        else:
            with pytest.raises(ValueError, match=f"slot {action} is not held"):
                ledger.give_back(action)
        assert ledger.slots_free == total - len(held)


def test_low_numbers_are_taken_first() -> None:
    ledger = SlotLedger(3)
    assert [ledger.take() for _ in range(4)] == [0, 1, 2, None]
