"""Page tables: slots, growth, copy on write, publishing and closing."""

import pytest

from anychip.engine.kv_tables import Copy, KVTables, slots
from anychip.engine.request import GenerateRequest, SamplingParams
from anychip.engine.sequence import Sequence
from anychip_sdk.errors import KVPoolExhausted
from support.fake_pool import FakePool


def sequence(tokens: list[int]) -> Sequence:
    return Sequence(GenerateRequest("r", tokens, SamplingParams(seed=1)))


def opened(tables: KVTables, tokens: list[int]) -> Sequence:
    new = sequence(tokens)
    tables.open(new, tables.match(new))
    return new


def test_a_slot_is_page_times_page_size_plus_offset() -> None:
    assert slots([5, 2, 9], 4, 3, 6) == [23, 8, 9, 10, 11, 36]
    assert slots([5, 2, 9], 1, 1, 2) == [2, 9]
    assert slots([5], 4, 2, 0) == []


def test_pages_needed_rounds_up() -> None:
    tables = KVTables(FakePool(4, 16), prefix_cache=True)
    assert [tables.pages_needed(count) for count in (0, 1, 16, 17)] == [0, 1, 1, 2]


def test_a_full_hit_still_leaves_the_last_token_to_compute() -> None:
    tables = KVTables(FakePool(10, 2), prefix_cache=True)
    first = opened(tables, [1, 2, 3, 4])
    first.computed = first.scheduled = 4
    tables.close(first, keep=True)
    second = opened(tables, [1, 2, 3, 4])
    assert second.computed == 2
    assert len(second.pages) == 2


def test_forks_share_pages_and_all_but_the_last_writer_copy() -> None:
    pool = FakePool(10, 4)
    tables = KVTables(pool, prefix_cache=False)
    parent = opened(tables, [1, 2, 3, 4, 5])
    parent.computed = parent.scheduled = 5
    forks = [sequence([1, 2, 3, 4, 5]) for _ in range(2)]
    for fork in forks:
        tables.share(parent, fork)
    family = [parent, *forks]
    full, partial = parent.pages
    assert (pool.refcount(full), pool.refcount(partial)) == (3, 3)
    assert tables.growth(family) == 2
    copies = [tables.grow(member) for member in family]
    assert copies == [Copy(partial, parent.pages[1]), Copy(partial, forks[0].pages[1]), None]
    assert len({member.pages[1] for member in family}) == 3
    assert (pool.refcount(full), pool.refcount(partial)) == (3, 1)
    for member in family:
        tables.close(member, keep=True)
    assert pool.stats().pages_free == 10


def test_a_fork_at_a_page_boundary_copies_nothing() -> None:
    tables = KVTables(FakePool(10, 4), prefix_cache=True)
    parent = opened(tables, [1, 2, 3, 4])
    parent.computed = parent.scheduled = 4
    tables.publish(parent)
    fork = sequence([1, 2, 3, 4])
    tables.share(parent, fork)
    assert tables.growth([parent, fork]) == 2
    assert [tables.grow(parent), tables.grow(fork)] == [None, None]
    assert parent.pages[0] == fork.pages[0]
    assert parent.pages[1] != fork.pages[1]


def test_publishing_what_is_cached_already_swaps_own_pages_for_the_trees() -> None:
    pool = FakePool(10, 2)
    tables = KVTables(pool, prefix_cache=True)
    first, second = opened(tables, [1, 2, 3, 4, 5]), opened(tables, [1, 2, 3, 4, 6])
    first.computed = first.scheduled = second.computed = second.scheduled = 4
    tables.publish(first)
    version = second.table_version
    own = second.pages[:2]
    tables.publish(second)
    assert second.pages[:2] == first.pages[:2]
    assert second.table_version > version
    assert [pool.refcount(page) for page in own] == [0, 0]
    assert [pool.refcount(page) for page in first.pages[:2]] == [3, 3]


def test_only_computed_full_pages_are_published() -> None:
    pool = FakePool(10, 2)
    tables = KVTables(pool, prefix_cache=True)
    first = opened(tables, [1, 2, 3, 4, 5, 6])
    first.computed = first.scheduled = 3
    tables.close(first, keep=True)
    assert tables.match(sequence([1, 2, 3, 4, 5, 6])).pages == 1
    assert pool.stats().pages_used == 1


def test_doubtful_content_is_not_published() -> None:
    pool = FakePool(10, 2)
    tables = KVTables(pool, prefix_cache=True)
    first = opened(tables, [1, 2, 3, 4, 5, 6])
    first.computed = first.scheduled = 5
    tables.close(first, keep=False)
    assert pool.stats().pages_used == 0


def test_a_failed_opening_holds_nothing() -> None:
    pool = FakePool(4, 1)
    tables = KVTables(pool, prefix_cache=True)
    first = opened(tables, [1, 2])
    first.computed = first.scheduled = 1
    tables.close(first, keep=True)
    second = sequence([1, 2, 3, 4, 5, 6])
    with pytest.raises(KVPoolExhausted):
        tables.open(second, tables.match(second))
    assert (second.pages, second.node, second.computed) == ([], None, 0)
    assert tables.pages_available == 4


def test_opening_pages_foretells_what_opening_takes() -> None:
    tables = KVTables(FakePool(10, 1), prefix_cache=True)
    first = opened(tables, [1, 2, 3, 4])
    first.computed = first.scheduled = 3
    tables.close(first, keep=True)
    second = sequence([1, 2, 9, 9, 9])
    match = tables.match(second)
    before = tables.pages_available
    expected = tables.opening_pages(second, match)
    tables.open(second, match)
    assert before - tables.pages_available == expected == 5


def test_pages_that_others_hold_are_not_counted_on() -> None:
    pool = FakePool(10, 1)
    pool.alloc(3)
    assert KVTables(pool, prefix_cache=True).pages_total == 7
