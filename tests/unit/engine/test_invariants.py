"""A check that passes on nonsense is worth nothing: each kind of damage is found."""

from collections.abc import Callable

import pytest

from anychip.engine.invariants import InvariantBroken
from anychip.engine.radix_cache import Node
from anychip.engine.sequence import encode
from anychip.engine.slot_tables import SlotTables
from support.schedules import Bench, config


def busy(slots: int = 0) -> Bench:
    bench = Bench(config(page_size=2), 50, slots=slots)
    bench.add("old", [5] * 9, max_tokens=1)
    bench.drain()
    bench.add("a", [1, 2, 3, 4, 5], max_tokens=30)
    bench.step()
    return bench


def lose(bench: Bench) -> None:
    bench.scheduler._decoding[0].pages.pop()


def take(bench: Bench) -> None:
    bench.pool.alloc(1)


def double(bench: Bench) -> None:
    pages = bench.scheduler._decoding[0].pages
    pages[-1] = pages[0]


def unlock(bench: Bench) -> None:
    cache, node = bench.scheduler._tables.cache, bench.scheduler._decoding[0].node
    assert cache is not None
    assert node is not None
    cache.unlock(node)


def miscount(bench: Bench) -> None:
    cache = bench.scheduler._tables.cache
    assert cache is not None
    cache.pages_evictable += 1


def forget_order(bench: Bench) -> None:
    cache = bench.scheduler._tables.cache
    assert cache is not None
    cache._unlocked.popitem()


def parent_first(bench: Bench) -> None:
    cache = bench.scheduler._tables.cache
    assert cache is not None
    size, pool = bench.settings.page_size, bench.pool
    for last in (1, 2):
        pages = pool.alloc(2)
        cache.insert("", encode([7] * size + [last] * size), pages)
        pool.free(pages)
    bench.scheduler.check_invariants()
    parent = next(node for node in cache.unlocked() if node.children)
    cache._unlocked.move_to_end(parent, last=False)


def run_ahead(bench: Bench) -> None:
    bench.scheduler._decoding[0].computed += 1


@pytest.mark.parametrize("damage", [lose, take, double, unlock, miscount, forget_order, parent_first, run_ahead])
def test_damage_is_found(damage: Callable[[Bench], None]) -> None:
    bench = busy()
    bench.scheduler.check_invariants()
    damage(bench)
    with pytest.raises(InvariantBroken):
        bench.scheduler.check_invariants()


def slots_of(bench: Bench) -> SlotTables:
    assert bench.scheduler._tables.slots is not None
    return bench.scheduler._tables.slots


def lose_slot(bench: Bench) -> None:
    slots_of(bench).ledger.take()


def share_slot(bench: Bench) -> None:
    snapshots = slots_of(bench).snapshots
    bench.scheduler._decoding[0].slot = next(iter(snapshots.slots.values()))


def run_without_slot(bench: Bench) -> None:
    slots_of(bench).close(bench.scheduler._decoding[0])


def wait_with_slot(bench: Bench) -> None:
    bench.add("b", [1, 2, 3])
    slot = slots_of(bench).ledger.take()
    assert slot is not None
    bench.scheduler._waiting[0].slot = slot


def keep_snapshot_of_lost_node(bench: Bench) -> None:
    slot = slots_of(bench).ledger.take()
    assert slot is not None
    slots_of(bench).snapshots.add(Node("", None, b"", []), slot)


@pytest.mark.parametrize(
    "damage", [lose_slot, share_slot, run_without_slot, wait_with_slot, keep_snapshot_of_lost_node]
)
def test_damage_to_slots_is_found(damage: Callable[[Bench], None]) -> None:
    bench = busy(slots=8)
    bench.step()  # the first chunk ended behind the last page
    bench.scheduler.check_invariants()
    damage(bench)
    with pytest.raises(InvariantBroken, match=r"slot|snapshot"):
        bench.scheduler.check_invariants()


def test_a_slot_in_a_model_without_slots_is_found() -> None:
    bench = busy()
    bench.scheduler._decoding[0].slot = 0
    with pytest.raises(InvariantBroken, match="keeps none"):
        bench.scheduler.check_invariants()
