"""Snapshots of nodes: which goes first, and where its slot goes."""

from anychip.engine.radix_cache import Node
from anychip.engine.slot_ledger import SlotLedger
from anychip.engine.snapshots import Snapshots


def node() -> Node:
    return Node("", None, b"", [])


def kept(snapshots: Snapshots, count: int) -> list[Node]:
    nodes = [node() for _ in range(count)]
    for one in nodes:
        slot = snapshots.take()
        assert slot is not None
        snapshots.add(one, slot)
    return nodes


def test_the_least_recently_used_snapshot_makes_room() -> None:
    snapshots = Snapshots(SlotLedger(3))
    first, second, third = kept(snapshots, 3)
    snapshots.use(first)
    assert snapshots.take() == 1
    assert (first in snapshots, second in snapshots, third in snapshots) == (True, False, True)
    assert snapshots.take() == 2
    assert snapshots.take() == 0
    assert snapshots.take() is None


def test_free_slots_are_taken_before_snapshots_go() -> None:
    snapshots = Snapshots(SlotLedger(2))
    [first] = kept(snapshots, 1)
    assert snapshots.take() == 1
    assert first in snapshots


def test_a_dropped_snapshot_gives_its_slot_back_once() -> None:
    ledger = SlotLedger(2)
    snapshots = Snapshots(ledger)
    first, second = kept(snapshots, 2)
    snapshots.drop(first)
    snapshots.drop(first)
    assert ledger.slots_free == 1
    snapshots.clear()
    assert (ledger.slots_free, second in snapshots) == (2, False)
