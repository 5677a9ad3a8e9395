"""Slots of sequences: where a state comes from, in which order, and what a lack of slots does."""

import pytest

from anychip.engine.kv_tables import KVTables
from anychip.engine.radix_cache import Match
from anychip.engine.request import GenerateRequest, SamplingParams
from anychip.engine.sequence import Sequence
from anychip.engine.slot_tables import SlotsExhausted
from anychip.engine.state_ops import NO_SLOT, ClearSlot, CopySlot
from support.fake_pool import FakePool


def sequence(tokens: list[int], forks: int = 0) -> Sequence:
    request = GenerateRequest("r", tokens, SamplingParams(seed=1, n=1 + forks))
    made = Sequence(request)
    made.forks = [Sequence(request, index + 1) for index in range(forks)]
    return made


def opened(tables: KVTables, tokens: list[int], forks: int = 0) -> Sequence:
    new = sequence(tokens, forks)
    tables.open(new, tables.match(new))
    return new


def computed(tables: KVTables, tokens: list[int], count: int) -> Sequence:
    """Opened, and its first tokens computed in one chunk."""
    new = opened(tables, tokens)
    new.computed = new.scheduled = count
    tables.publish(new)
    tables.snapshot(new)
    return new


def made(pages: int = 20, page_size: int = 2, slots: int = 4, prefix_cache: bool = True) -> KVTables:
    return KVTables(FakePool(pages, page_size, slots), prefix_cache=prefix_cache)


def free(tables: KVTables) -> int:
    assert tables.slots is not None
    return tables.slots.ledger.slots_free


def test_a_model_without_slot_states_has_no_slots() -> None:
    tables = KVTables(FakePool(10, 2), prefix_cache=True)
    first = computed(tables, [1, 2, 3, 4, 5], 4)
    assert (tables.slots, first.slot, tables.take_state_ops()) == (None, NO_SLOT, ())
    assert tables.chunk_end(first, 5) == 5
    assert tables.match(sequence([1, 2, 3, 9])).pages == 1


def test_a_sequence_from_nothing_begins_with_a_cleared_slot() -> None:
    tables = made()
    first = opened(tables, [1, 2, 3])
    assert tables.take_state_ops() == (ClearSlot(first.slot),)
    assert tables.take_state_ops() == ()


def test_a_sequence_with_a_cached_prefix_begins_with_a_copy_of_its_snapshot() -> None:
    tables = made()
    first = computed(tables, [1, 2, 3, 4, 5], 4)
    second = opened(tables, [1, 2, 3, 4, 6])
    cleared, kept, copied = tables.take_state_ops()
    assert isinstance(kept, CopySlot)
    assert (cleared, kept.source, copied) == (ClearSlot(first.slot), first.slot, CopySlot(kept.target, second.slot))
    assert second.computed == 4
    assert len({first.slot, second.slot, kept.target}) == 3


def test_a_prefix_is_of_use_only_as_far_as_a_snapshot_reaches() -> None:
    tables = made()
    first = computed(tables, [1, 2, 3, 4, 5, 6, 7, 8, 9], 4)
    first.computed = first.scheduled = 8
    tables.publish(first)  # pages without a snapshot behind them
    assert tables.match(sequence([1, 2, 3, 4, 5, 6, 7])).pages == 2
    assert tables.match(sequence([1, 2, 3, 4, 9])).pages == 2
    assert tables.match(sequence([1, 2, 3])) == Match(None, 0, 0)  # half a run


def test_a_chunk_that_ends_inside_a_page_leaves_no_snapshot() -> None:
    tables = made()
    computed(tables, [1, 2, 3, 4, 5], 3)
    assert tables.match(sequence([1, 2, 3])).pages == 0
    assert free(tables) == 3


def test_a_split_run_keeps_its_snapshot_at_its_end() -> None:
    tables = made()
    computed(tables, [1, 2, 3, 4, 5], 4)
    computed(tables, [1, 2, 9, 9, 9], 4)
    assert tables.match(sequence([1, 2, 3, 4, 5])).pages == 2
    assert tables.match(sequence([1, 2, 9, 9, 5])).pages == 2
    assert tables.match(sequence([1, 2, 8])).pages == 0


def test_a_run_that_loses_its_end_loses_its_snapshot() -> None:
    tables = made()
    tables.close(computed(tables, [1, 2, 3, 4, 5], 4), keep=True)
    assert (tables.match(sequence([1, 2, 3, 4, 5])).pages, free(tables)) == (2, 3)
    assert tables.cache is not None
    tables.cache.evict(1)
    assert (tables.match(sequence([1, 2, 3, 4, 5])).pages, free(tables)) == (0, 4)


def test_a_fork_gets_a_copy_in_the_slot_that_was_taken_for_it() -> None:
    tables = made()
    parent = opened(tables, [1, 2, 3], forks=2)
    assert free(tables) == 1
    slots = [fork.slot for fork in parent.forks]
    tables.take_state_ops()
    parent.computed = parent.scheduled = 3
    for fork in parent.forks:
        tables.share(parent, fork)
    assert tables.take_state_ops() == tuple(CopySlot(parent.slot, slot) for slot in slots)


def test_closing_before_the_fork_frees_the_forks_slots_too() -> None:
    tables = made()
    parent = opened(tables, [1, 2, 3], forks=2)
    tables.close(parent, keep=True)
    assert free(tables) == 4
    assert {member.slot for member in (parent, *parent.forks)} == {NO_SLOT}


def test_without_a_free_slot_the_oldest_snapshot_goes_then_opening_fails_and_holds_nothing() -> None:
    tables = made(slots=2)
    first = computed(tables, [1, 2, 3], 2)
    second = opened(tables, [7, 8, 9])
    assert free(tables) == 0
    assert tables.match(sequence([1, 2, 3])).pages == 0
    third = sequence([4, 5, 6])
    pages = tables.pages_available
    with pytest.raises(SlotsExhausted, match="hold all 2"):
        tables.open(third, tables.match(third))
    assert (third.slot, third.pages, tables.pages_available) == (NO_SLOT, [], pages)
    assert {first.slot, second.slot} == {0, 1}


def test_the_last_snapshot_gives_its_slot_to_its_reader_without_a_copy() -> None:
    tables = made(slots=2)
    first = computed(tables, [1, 2, 3], 2)
    tables.take_state_ops()
    second = opened(tables, [1, 2, 4])
    assert second.computed == 2
    assert tables.take_state_ops() == ()  # what the snapshot holds is what it begins with
    assert {first.slot, second.slot} == {0, 1}


def test_a_snapshot_is_given_up_rather_than_taken_from_a_sequence() -> None:
    tables = made(slots=1)
    computed(tables, [1, 2, 3], 2)
    assert tables.match(sequence([1, 2, 3])).pages == 0


def test_a_new_snapshot_makes_a_match_longer() -> None:
    tables = made()
    assert tables.cache is not None
    first = opened(tables, [1, 2, 3])
    first.computed = first.scheduled = 2
    tables.publish(first)
    version = tables.cache.version
    tables.snapshot(first)
    assert tables.cache.version > version
    tables.snapshot(first)
    assert free(tables) == 2  # one per node


def test_chunks_end_behind_the_last_page_before_the_last_token_and_where_prompts_part() -> None:
    tables = made()
    first = opened(tables, [1, 2, 3, 4, 5, 6])
    assert [tables.chunk_end(first, end) for end in (1, 3, 4, 5, 6)] == [1, 3, 4, 4, 4]
    first.computed = first.scheduled = 5
    assert tables.chunk_end(first, 6) == 6
    tables.close(first, keep=True)
    second = opened(tables, [1, 2, 9, 9, 9, 9])
    assert second.computed == 0
    assert tables.chunk_end(second, 6) == 2
    second.computed = second.scheduled = 2
    assert tables.chunk_end(second, 6) == 4


def test_without_a_prefix_cache_nothing_is_kept_and_no_chunk_ends_early() -> None:
    tables = made(prefix_cache=False)
    first = computed(tables, [1, 2, 3], 2)
    assert tables.chunk_end(first, 3) == 3
    assert free(tables) == 3
    assert tables.take_state_ops() == (ClearSlot(first.slot),)


def test_after_a_failed_step_no_snapshot_is_trusted() -> None:
    tables = made()
    tables.close(computed(tables, [1, 2, 3], 2), keep=False)
    tables.distrust_snapshots()
    assert tables.match(sequence([1, 2, 3])).pages == 0
    assert (free(tables), tables.take_state_ops()) == (4, ())
