"""The tree of cached prefixes: matching, splitting, locking, counting and evicting."""

import random
import sys
from collections import OrderedDict
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from anychip.engine.radix_cache import Node, RadixCache
from anychip.engine.sequence import encode
from anychip_sdk.kv import KVPool
from support.fake_pool import FakePool


def put(cache: RadixCache, pool: KVPool, tokens: list[int], namespace: str = "") -> list[int]:
    """Insert a run as a sequence that ends does: the tree alone holds the pages afterwards."""
    pages = pool.alloc(len(tokens) // pool.layout.page_size)
    inserted = cache.insert(namespace, encode(tokens), pages)
    pool.free(pages)
    return inserted.pages


def matched(cache: RadixCache, tokens: list[int], namespace: str = "") -> int:
    return cache.match(namespace, encode(tokens), 10_000).pages


def check(cache: RadixCache, pool: KVPool, total: int) -> None:
    """The counters equal a walk over the whole tree."""
    nodes = list(cache.nodes())
    evictable = sum(len(node.pages) for node in nodes if node.locks == 0)
    protected = sum(len(node.pages) for node in nodes if node.locks > 0)
    assert (cache.pages_evictable, cache.pages_protected) == (evictable, protected)
    assert pool.stats().pages_free + evictable + protected == total
    order = list(cache.unlocked())
    assert len(order) == len(set(order))
    assert set(order) == {node for node in nodes if node.locks == 0 and node.pages}
    for node in nodes:
        assert len(node.key) == len(node.pages) * pool.layout.page_size * 4
        assert all(child.parent is node for child in node.children.values())
        assert node.pages or node.children or node.parent is None


def test_a_match_is_floored_to_whole_pages() -> None:
    pool = FakePool(10, 3)
    cache = RadixCache(pool)
    put(cache, pool, [1, 2, 3, 4, 5, 6])
    for length, pages in [(0, 0), (1, 0), (2, 0), (3, 1), (5, 1), (6, 2), (7, 2)]:
        assert matched(cache, [1, 2, 3, 4, 5, 6, 7][:length]) == pages


def test_runs_that_part_inside_a_page_share_only_the_pages_before() -> None:
    for length in range(1, 8):  # page 3, lengths up to two pages and one
        pool = FakePool(20, 3)
        cache = RadixCache(pool)
        left = [1] * length + [2] * 8
        right = [1] * length + [3] * 8
        put(cache, pool, left[:9])
        put(cache, pool, right[:9])
        assert matched(cache, left[:9]) == matched(cache, right[:9]) == 3
        check(cache, pool, 20)


def test_matching_changes_nothing() -> None:
    pool = FakePool(10, 1)
    cache = RadixCache(pool)
    put(cache, pool, [1, 2, 3, 4])
    before = [(id(node), node.key, list(node.pages)) for node in cache.nodes()], list(cache.unlocked())
    match = cache.match("", encode([1, 2, 9]), 10)
    assert (match.pages, match.node_pages) == (2, 2)
    after = [(id(node), node.key, list(node.pages)) for node in cache.nodes()], list(cache.unlocked())
    assert before == after


def test_locking_half_a_node_leaves_the_other_half_evictable() -> None:
    pool = FakePool(10, 1)
    cache = RadixCache(pool)
    pages = put(cache, pool, [1, 2, 3, 4])
    node, held = cache.lock(cache.match("", encode([1, 2, 9]), 10))
    assert node is not None
    assert held == pages[:2]
    assert cache.evict(10) == 2
    assert matched(cache, [1, 2, 3, 4]) == 2
    cache.unlock(node)
    assert cache.evict(10) == 2
    check(cache, pool, 10)
    assert pool.stats().pages_free == 10


def test_a_lock_keeps_the_node_itself_and_its_ancestors() -> None:
    pool = FakePool(10, 1)
    cache = RadixCache(pool)
    put(cache, pool, [1, 2])
    put(cache, pool, [1, 2, 3, 4])
    put(cache, pool, [1, 2, 5])
    node, _ = cache.lock(cache.match("", encode([1, 2, 3, 4]), 10))
    assert node is not None
    assert cache.evict(10) == 1
    assert matched(cache, [1, 2, 3, 4]) == 4
    cache.unlock(node)
    assert cache.evict(10) == 4
    assert list(cache.nodes()) == []


def test_the_least_recently_used_run_goes_first_and_only_as_much_as_is_needed() -> None:
    pool = FakePool(10, 1)
    cache = RadixCache(pool)
    put(cache, pool, [1, 1, 1])
    put(cache, pool, [2, 2, 2])
    node, _ = cache.lock(cache.match("", encode([1, 1, 1]), 10))
    assert node is not None
    cache.unlock(node)  # now [2, 2, 2] is the older
    assert cache.evict(2) == 2
    assert (matched(cache, [1, 1, 1]), matched(cache, [2, 2, 2])) == (3, 1)
    check(cache, pool, 10)


def test_a_parent_becomes_evictable_when_its_last_child_is_gone() -> None:
    pool = FakePool(10, 1)
    cache = RadixCache(pool)
    put(cache, pool, [1, 2, 3])
    put(cache, pool, [1, 2, 4])
    assert cache.evict(2) == 2
    check(cache, pool, 10)
    assert cache.evict(2) == 2
    check(cache, pool, 10)


def test_inserting_what_is_there_returns_the_trees_pages() -> None:
    pool = FakePool(10, 2)
    cache = RadixCache(pool)
    first = put(cache, pool, [1, 2, 3, 4])
    own = pool.alloc(3)
    inserted = cache.insert("", encode([1, 2, 3, 4, 5, 6]), own)
    assert inserted.pages == [*first, own[2]]
    assert inserted.added == 1
    assert [pool.refcount(page) for page in own] == [1, 1, 2]


def test_a_prompt_inserted_in_chunks_is_one_node() -> None:
    pool = FakePool(100, 1)
    cache = RadixCache(pool)
    tokens = list(range(40))
    pages = pool.alloc(40)
    held = None
    for end in range(4, 41, 4):
        inserted = cache.insert("", encode(tokens[:end]), pages[:end], held)
        if inserted.node is not held:
            assert held is None
            held = inserted.node
            cache.lock_node(held)
    assert sum(1 for node in cache.nodes() if node.pages) == 1
    assert cache.pages_protected == 40


def test_a_node_that_another_holds_does_not_grow_under_it() -> None:
    pool = FakePool(100, 1)
    cache = RadixCache(pool)
    put(cache, pool, [1, 2])
    mine, _ = cache.lock(cache.match("", encode([1, 2]), 2))
    other, _ = cache.lock(cache.match("", encode([1, 2]), 2))
    assert mine is other
    pages = pool.alloc(3)
    inserted = cache.insert("", encode([1, 2, 3]), pages, mine)
    assert inserted.node is not mine
    assert cache.pages_protected == 2


def test_namespaces_share_nothing() -> None:
    pool = FakePool(10, 1)
    cache = RadixCache(pool)
    put(cache, pool, [1, 2, 3], "salt=1:x;")
    assert matched(cache, [1, 2, 3], "adapter=1:x;") == 0
    assert matched(cache, [1, 2, 3]) == 0
    assert matched(cache, [1, 2, 3], "salt=1:x;") == 3


def test_an_empty_namespace_leaves_nothing_behind() -> None:
    pool = FakePool(10, 1)
    cache = RadixCache(pool)
    for number in range(50):
        put(cache, pool, [1, 2, 3], str(number))
        cache.evict(3)
    assert list(cache.nodes()) == []


def lines_to_evict(leaves: int, count: int) -> int:
    """How many lines of Python run to evict `count` pages from a tree of so many one-page leaves."""
    pool = FakePool(leaves, 1)
    cache = RadixCache(pool)
    for number in range(leaves):
        put(cache, pool, [number])
    lines = 0

    def trace(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        cache.evict(count)
    finally:
        sys.settrace(before)
    assert pool.stats().pages_free == count
    return lines


def test_the_work_of_an_eviction_does_not_grow_with_the_number_of_leaves() -> None:
    assert lines_to_evict(20, 10) == lines_to_evict(3000, 10)


def test_an_eviction_reads_no_more_of_the_order_than_it_evicts(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = FakePool(3000, 1)
    cache = RadixCache(pool)
    for number in range(3000):
        put(cache, pool, [number])
    reads = 0

    class Counted(OrderedDict[Node, None]):
        def __iter__(self) -> Iterator[Node]:
            nonlocal reads
            for node in super().__iter__():
                reads += 1
                yield node

    monkeypatch.setattr(cache, "_unlocked", Counted(cache._unlocked))
    assert cache.evict(100) == 100
    assert reads == 100


@pytest.mark.parametrize("page_size", [1, 2, 3])
def test_counters_equal_a_full_walk_after_random_work(page_size: int) -> None:
    random_ = random.Random(page_size)
    total = 60
    pool = FakePool(total, page_size)
    cache = RadixCache(pool)
    locked = []
    for _ in range(1500):
        action = random_.randrange(5)
        tokens = [random_.randrange(2) for _ in range(page_size * random_.randrange(1, 7))]
        if action == 0 and pool.stats().pages_free >= len(tokens) // page_size:
            put(cache, pool, tokens, random_.choice(["", "a"]))
        elif action == 1:
            node, _ = cache.lock(cache.match("", encode(tokens), 100))
            if node is not None:
                locked.append(node)
        elif action == 2 and locked:
            cache.unlock(locked.pop(random_.randrange(len(locked))))
        elif action == 3:
            match = cache.match("", encode(tokens), 100)
            before = cache.pages_evictable
            expected = cache.unlocked_pages(match)
            node, pages = cache.lock(match)
            assert before - cache.pages_evictable == expected
            assert len(pages) == match.pages
            if node is not None:
                cache.unlock(node)
        else:
            wanted, evictable = random_.randrange(4), cache.pages_evictable
            assert cache.evict(wanted) == min(wanted, evictable)
        check(cache, pool, total)
    for node in locked:
        cache.unlock(node)
    cache.evict(total)
    assert pool.stats().pages_free == total
