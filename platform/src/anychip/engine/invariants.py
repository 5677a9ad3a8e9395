"""Check that no page and no slot is lost, doubled or shared by mistake. Knows tables and tree; mends nothing.

free + evictable + protected + in flight == total, each page in exactly one of the four; and the references to a page
are one for the tree, if it is there, and one for each table that holds it. A slot is free, or held by one
running sequence or fork-to-be of one, or by one snapshot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from anychip.engine.kv_tables import KVTables
from anychip.engine.radix_cache import Node, RadixCache
from anychip.engine.sequence import TOKEN_BYTES, Sequence, State
from anychip.engine.slot_tables import SlotTables
from anychip.engine.state_ops import NO_SLOT
from anychip_sdk.errors import AnychipError


class InvariantBroken(AnychipError):
    """The book-keeping of pages and slots contradicts itself: a bug of ours, never a user's mistake."""


def check(tables: KVTables, running: Iterable[Sequence], waiting: Iterable[Sequence]) -> None:
    """
    Raises:
        InvariantBroken: with one line for each contradiction.
    """
    running, waiting = list(running), list(waiting)
    problems = [
        *_sequences(tables, running, waiting),
        *_pages(tables, running),
        *([] if tables.cache is None else _tree(tables.cache, tables.page_size, running)),
        *_slots(tables.slots, tables.cache, running, waiting),
    ]
    if problems:
        raise InvariantBroken("\n".join(problems))


def _sequences(tables: KVTables, running: list[Sequence], waiting: list[Sequence]) -> Iterator[str]:
    if len({id(sequence) for sequence in [*running, *waiting]}) != len(running) + len(waiting):
        yield "a sequence is in two lists"
    for sequence in waiting:
        if sequence.state is not State.WAITING or sequence.pages or sequence.node is not None or sequence.scheduled:
            yield f"{sequence!r} waits, and holds something"
    for sequence in running:
        if sequence.state is not State.RUNNING:
            yield f"{sequence!r} is not running"
        if not 0 <= sequence.computed < len(sequence.tokens):
            yield f"{sequence!r} has nothing left to compute"
        if not sequence.computed <= sequence.scheduled <= len(sequence.tokens) + 1:
            yield f"{sequence!r} is scheduled up to {sequence.scheduled}"
        if (
            not tables.pages_needed(sequence.scheduled)
            <= len(sequence.pages)
            <= tables.pages_needed(max(len(sequence.tokens), sequence.scheduled))
        ):
            yield f"{sequence!r} holds the wrong number of pages"
        if sequence.cached_tokens >= sequence.prompt_len:
            yield f"{sequence!r} has {sequence.cached_tokens} cached tokens of {sequence.prompt_len}"
        if len(set(sequence.pages)) != len(sequence.pages):
            yield f"{sequence!r} holds a page twice"


def _pages(tables: KVTables, running: list[Sequence]) -> Iterator[str]:
    held = Counter(page for sequence in running for page in sequence.pages)
    cached: Counter[int] = Counter()
    if tables.cache is not None:
        cached.update(page for node in tables.cache.nodes() for page in node.pages)
    for page, count in cached.items():
        if count > 1:
            yield f"page {page} is in the tree {count} times"
    used = held.keys() | cached.keys()
    for page in used:
        expected, found = held[page] + cached[page], tables.pool.refcount(page)
        if found != expected:
            yield f"page {page} has {found} references, expected {expected}"
    if tables.pages_free + len(used) != tables.pages_total:
        yield f"{tables.pages_free} pages free + {len(used)} used is not {tables.pages_total}"


def _slots(
    slots: SlotTables | None, cache: RadixCache | None, running: list[Sequence], waiting: list[Sequence]
) -> Iterator[str]:
    for sequence in waiting:
        if any(member.slot != NO_SLOT for member in (sequence, *sequence.forks)):
            yield f"{sequence!r} waits, and holds a slot"
    held = Counter(member.slot for sequence in running for member in (sequence, *sequence.forks))
    if slots is None:
        if held.keys() - {NO_SLOT}:
            yield "a sequence holds a slot of a model that keeps none"
        return
    if held.pop(NO_SLOT, 0):
        yield "a sequence runs without a slot for its state"
    held.update(slots.snapshots.slots.values())
    for slot, count in held.items():
        if count > 1:
            yield f"slot {slot} has {count} holders"
    if slots.ledger.slots_free + len(held) != slots.ledger.slots_total:
        yield f"{slots.ledger.slots_free} slots free + {len(held)} held is not {slots.ledger.slots_total}"
    if slots.snapshots.slots.keys() - set([] if cache is None else cache.nodes()):
        yield "a snapshot is of a node that is not in the tree"


def _tree(cache: RadixCache, page_size: int, running: list[Sequence]) -> Iterator[str]:
    locks = _expected_locks(running)
    evictable = protected = 0
    place = {id(node): number for number, node in enumerate(cache.unlocked())}
    for node in cache.nodes():
        yield from _node(node, page_size * TOKEN_BYTES)
        if node.locks != locks[id(node)]:
            yield f"a node of {len(node.pages)} pages has {node.locks} locks, expected {locks[id(node)]}"
        if (id(node) in place) != (node.locks == 0 and bool(node.pages)):
            yield f"a node of {len(node.pages)} pages and {node.locks} locks is wrongly in or out of the eviction order"
        elif any(place.get(id(child), -1) > place[id(node)] for child in node.children.values() if id(node) in place):
            yield f"a node of {len(node.pages)} pages would be evicted before a child of its own"
        if node.locks:
            protected += len(node.pages)
        else:
            evictable += len(node.pages)
    if (evictable, protected) != (cache.pages_evictable, cache.pages_protected):
        yield (
            f"the tree has {evictable} evictable and {protected} protected pages, "
            f"the counters say {cache.pages_evictable} and {cache.pages_protected}"
        )
    for sequence in running:
        if _path_pages(sequence.node) != sequence.pages[: sequence.cached_pages]:
            yield f"{sequence!r} does not hold the pages of the node it locks"


def _expected_locks(running: list[Sequence]) -> Counter[int]:
    locks: Counter[int] = Counter()
    for sequence in running:
        node = sequence.node
        while node is not None:
            locks[id(node)] += 1
            node = node.parent
    return locks


def _node(node: Node, page_bytes: int) -> Iterator[str]:
    if len(node.key) != len(node.pages) * page_bytes:
        yield f"a node has {len(node.pages)} pages and a key of {len(node.key)} bytes"
    if not node.pages and (node.parent is not None or not node.children):
        yield "a node is empty"
    for first, child in node.children.items():
        if child.parent is not node or child.key[:page_bytes] != first:
            yield "a child is not where its parent keeps it"


def _path_pages(node: Node | None) -> list[int]:
    pages: list[int] = []
    while node is not None:
        pages = node.pages + pages
        node = node.parent
    return pages


__all__ = ["InvariantBroken", "check"]
