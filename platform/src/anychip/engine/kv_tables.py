"""Which pages each sequence holds, from opening its table to closing it. Knows pool and tree; knows no queue or step.

A sequence holds one reference to each page in its table, the tree one to each page in it. So the references to a page
are (in the tree: 1) + (tables that hold it), and a page written to is always held by one table alone.

In a model with slot states a sequence holds a slot besides, and a cached prefix is of use only as far as there is a
snapshot of the state behind it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from anychip.engine.radix_cache import Match, RadixCache
from anychip.engine.sequence import Sequence
from anychip.engine.slot_tables import SlotsExhausted, SlotTables
from anychip.engine.state_ops import StateOp
from anychip_sdk.errors import KVPoolExhausted
from anychip_sdk.kv import KVPool


class Copy(NamedTuple):
    source: int
    target: int


class KVTables:
    """The page tables of all sequences over one pool.

    Args:
        prefix_cache: keep computed prefixes for later requests.
    """

    def __init__(self, pool: KVPool, *, prefix_cache: bool) -> None:
        self.pool = pool
        self.page_size = pool.layout.page_size
        self.pages_total = pool.stats().pages_free  # what others hold already is not ours to count on
        has_slots = any(group.spec.kind == "slot" for group in pool.groups)
        self.slots = SlotTables(pool.layout.slots, self.page_size) if has_slots else None
        self.cache = RadixCache(pool, self.slots.snapshots if self.slots else None) if prefix_cache else None

    @property
    def pages_free(self) -> int:
        return self.pool.stats().pages_free

    @property
    def pages_available(self) -> int:
        """Free, or free after eviction."""
        return self.pages_free + (self.cache.pages_evictable if self.cache is not None else 0)

    def pages_needed(self, tokens: int) -> int:
        return -(-tokens // self.page_size)

    def match(self, sequence: Sequence) -> Match:
        """What of the sequence is cached; its last token never is, since that one's logits are wanted."""
        if self.cache is None:
            return Match(None, 0, 0)
        match = self._longest_match(self.cache, sequence)
        return match if self.slots is None else self.cache.restorable(match)

    def opening_pages(self, sequence: Sequence, match: Match) -> int:
        """By how much `pages_available` shrinks when the table is opened with this match."""
        unlocked = self.cache.unlocked_pages(match) if self.cache is not None else 0
        return self.pages_needed(len(sequence.tokens)) - match.pages + unlocked

    def open(self, sequence: Sequence, match: Match) -> None:
        """Give the sequence the matched pages, and new ones for the rest of its tokens.

        All at once, so that a prompt once begun never waits for memory.

        Raises:
            KVPoolExhausted, SlotsExhausted: the rest does not fit; the sequence holds nothing, as before.
        """
        if self.slots is not None and self.cache is not None:
            sequence.shared_tokens = self._longest_match(self.cache, sequence).pages * self.page_size
        node, pages = (None, []) if self.cache is None else self.cache.lock(match)
        self.pool.retain(pages)
        sequence.node, sequence.cached_pages, sequence.pages = node, len(pages), pages
        try:
            pages += self._take(self.pages_needed(len(sequence.tokens)) - len(pages))
            if self.slots is not None:
                self.slots.open(sequence, match)
        except (KVPoolExhausted, SlotsExhausted):
            self.close(sequence, keep=False)
            raise
        sequence.computed = sequence.scheduled = sequence.cached_pages * self.page_size
        sequence.table_version += 1

    def growth(self, sequences: Iterable[Sequence]) -> int:
        """Pages that must be taken so that each of these can write its next token."""
        count = 0
        leaving: dict[int, int] = {}  # shared page: how many of its holders will have gone to a copy
        for sequence in sequences:
            if sequence.scheduled < sequence.owned:
                continue
            index = sequence.scheduled // self.page_size
            if index == len(sequence.pages):
                count += 1
                continue
            page = sequence.pages[index]
            gone = leaving.get(page, 0)
            if self.pool.refcount(page) - gone > 1:
                leaving[page] = gone + 1
                count += 1
        return count

    def grow(self, sequence: Sequence) -> Copy | None:
        """Make the page of the next token the sequence's own. Returns the copy that must come before the write."""
        if sequence.scheduled < sequence.owned:
            return None
        index = sequence.scheduled // self.page_size
        sequence.owned = (index + 1) * self.page_size
        if index == len(sequence.pages):
            sequence.pages += self._take(1)
            return None
        page = sequence.pages[index]
        if self.pool.refcount(page) == 1:
            return None
        [target] = self._take(1)
        self.pool.free([page])  # others hold it still
        sequence.pages[index] = target
        sequence.table_version += 1
        return Copy(page, target)

    def share(self, parent: Sequence, child: Sequence) -> None:
        """Give the child all that the parent has computed. The partial last page is copied when one of them writes."""
        pages = parent.pages[: self.pages_needed(parent.computed)]
        self.pool.retain(pages)
        child.pages = pages
        child.computed = child.scheduled = parent.computed
        child.cached_pages = parent.cached_pages
        child.node = parent.node
        child.table_version += 1
        parent.owned = child.owned = 0
        if self.slots is not None:
            self.slots.fork(parent, child)
        if self.cache is not None and child.node is not None:
            self.cache.lock_node(child.node)

    def publish(self, sequence: Sequence) -> None:
        """Put the full pages computed so far in the tree; where it has them already, hold its pages, not our own."""
        full = sequence.computed // self.page_size
        if self.cache is None or full <= sequence.cached_pages:
            return
        key = sequence.key()
        run = sequence.pages[:full]
        node, pages, added = self.cache.insert(sequence.request.namespace, key, run, sequence.node)
        if full - added > sequence.cached_pages:
            self._swap(sequence, pages, sequence.cached_pages, full - added)
        if node is not sequence.node:
            self.cache.lock_node(node)
            if sequence.node is not None:
                self.cache.unlock(sequence.node)
            sequence.node = node
        sequence.cached_pages = full

    def snapshot(self, sequence: Sequence) -> None:
        """Keep the state behind a chunk that ends with a page; what was computed is published already.

        Not at other times: while a step runs, the slot may be ahead of `computed`.
        """
        if self.slots is not None and self.cache is not None:
            self.slots.snapshot(sequence, self.cache)

    def chunk_end(self, sequence: Sequence, end: int) -> int:
        """Where a chunk of prompt that may reach to `end` ends: early where a snapshot will serve others.

        That is behind the last page before the prompt's last token, for an equal prompt; and where the prompt parts
        from what was cached without a snapshot: as two requests have this beginning in common, more may come.
        """
        if self.slots is None or self.cache is None:
            return end
        last = (len(sequence.tokens) - 1) // self.page_size * self.page_size
        return min(mark for mark in (sequence.shared_tokens, last, end) if mark > sequence.scheduled)

    def take_state_ops(self) -> tuple[StateOp, ...]:
        """What must happen to slots before the next forward; the caller has to do it."""
        return () if self.slots is None else self.slots.take_ops()

    def close(self, sequence: Sequence, *, keep: bool) -> None:
        """Let go of every page and of the slot.

        Args:
            keep: what is computed may serve later requests; False when its content is in doubt.
        """
        if keep:
            self.publish(sequence)
        if self.cache is not None and sequence.node is not None:
            self.cache.unlock(sequence.node)
        if self.slots is not None:
            self.slots.close(sequence)
        self.pool.free(sequence.pages)
        sequence.node = None
        sequence.pages = []
        sequence.cached_pages = sequence.computed = sequence.scheduled = sequence.owned = 0
        sequence.table_version += 1

    def distrust(self, sequence: Sequence, page: int, running: Iterable[Sequence]) -> None:
        """Take what is cached of the sequence from that page on out of the tree, with all that was computed behind it.

        Args:
            running: sequences that may hold such pages; they keep them, as pages of their own.
        """
        if self.cache is None:
            return
        nodes = self.cache.below(sequence.request.namespace, sequence.key(), page)
        doubtful = set(nodes)
        for other in running:
            if other.node in doubtful:
                self.cache.unlock(other.node)
                other.node, other.cached_pages = None, 0
        self.cache.remove(nodes)

    def flush(self) -> None:
        """Evict all that nobody holds."""
        if self.cache is not None:
            self.cache.evict(self.cache.pages_evictable)

    def distrust_snapshots(self) -> None:
        """Forget all snapshots: a step failed, and whether its copies were made is not known."""
        if self.slots is not None:
            self.slots.forget()

    def _longest_match(self, cache: RadixCache, sequence: Sequence) -> Match:
        pages_max = (len(sequence.tokens) - 1) // self.page_size
        return cache.match(sequence.request.namespace, sequence.key(), pages_max)

    def _swap(self, sequence: Sequence, pages: list[int], start: int, end: int) -> None:
        """Replace own pages by the tree's with the same content."""
        self.pool.retain(pages[start:end])
        self.pool.free(sequence.pages[start:end])
        sequence.pages[start:end] = pages[start:end]
        sequence.table_version += 1

    def _take(self, count: int) -> list[int]:
        missing = count - self.pages_free
        if missing > 0 and self.cache is not None:
            self.cache.evict(missing)
        return self.pool.alloc(count)


def slots(pages: list[int], page_size: int, start: int, count: int) -> list[int]:
    """Where tokens start .. start+count-1 of a table lie: page * page_size + offset."""
    if page_size == 1:
        return pages[start : start + count]
    return [pages[position // page_size] * page_size + position % page_size for position in range(start, start + count)]


__all__ = ["Copy", "KVTables", "slots"]
