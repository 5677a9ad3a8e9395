"""The cached prefixes, as a tree of page-aligned runs. Knows tokens, pages and locks; knows no request.

The tree holds one pool reference to each page in it. A lock on a node keeps it and all its ancestors from eviction.
Keys are bytes (TOKEN_BYTES per token), so that comparing 8,000 tokens is one memcmp.

Eviction. All unlocked nodes are kept in one order, the least recently used first. Whoever uses a node uses its
ancestors after it, and a locked node's ancestors are locked, so the first of the order is always a leaf: evicting it
looks at no other node, however many there are.

A node may have a snapshot, which means the state behind its run; it goes when the run loses its end.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

from anychip.engine.sequence import TOKEN_BYTES
from anychip.engine.slot_ledger import SlotLedger
from anychip.engine.snapshots import Snapshots
from anychip_sdk.kv import KVPool


class Node:
    """A run of whole pages below a parent. `pages` is empty in a namespace's root only."""

    __slots__ = ("children", "key", "locks", "namespace", "pages", "parent")

    def __init__(self, namespace: str, parent: Node | None, key: bytes, pages: list[int]) -> None:
        self.namespace = namespace
        self.parent = parent
        self.key = key
        self.pages = pages
        self.children: dict[bytes, Node] = {}  # by the first page of the child's key
        self.locks = 0  # of this node and all below


class Match(NamedTuple):
    """The longest cached prefix, as it was when asked: it goes stale with the next insertion or eviction."""

    node: Node | None  #: None: nothing matched
    node_pages: int  #: how many of the node's own pages belong to it
    pages: int  #: matched in all


class Inserted(NamedTuple):
    node: Node  #: the end of the inserted run
    pages: list[int]  #: the tree's pages for the whole run; the caller's own where it had none
    added: int  #: how many of them are new in the tree


class RadixCache:
    """Find, keep, share and evict prefixes.

    Args:
        snapshots: of a model with slot states; None: it has none.
    """

    def __init__(self, pool: KVPool, snapshots: Snapshots | None = None) -> None:
        self._pool = pool
        self._snapshots = Snapshots(SlotLedger(0)) if snapshots is None else snapshots
        self._page_bytes = pool.layout.page_size * TOKEN_BYTES
        self._roots: dict[str, Node] = {}
        self._unlocked: OrderedDict[Node, None] = OrderedDict()  # the next to be evicted first; no roots
        self.version = 0  #: grows when a match could have become longer
        self.pages_evictable = 0
        self.pages_protected = 0
        self.pages_evicted = 0  #: ever

    def match(self, namespace: str, key: bytes | bytearray, pages_max: int) -> Match:
        """The longest cached prefix of the key, at most `pages_max` pages. Changes nothing, not even the LRU order."""
        size = self._page_bytes
        end = min(pages_max, len(key) // size) * size
        node, found = self._roots.get(namespace), None
        start = node_pages = 0
        while node is not None and start < end:
            child = node.children.get(bytes(key[start : start + size]))
            if child is None:
                break
            found = child
            if len(child.key) <= end - start and key.startswith(child.key, start):
                node, node_pages = child, len(child.pages)
            else:
                node, node_pages = None, self._common_pages(child.key, key, start, end)
            start += node_pages * size
        return Match(found, node_pages, start // size)

    def restorable(self, match: Match) -> Match:
        """As much of a match as ends where a node with a snapshot does."""
        node, pages, own = match.node, match.pages, match.node_pages
        while node is not None and (own < len(node.pages) or node not in self._snapshots):
            pages -= own
            node = node.parent
            own = 0 if node is None else len(node.pages)
        return Match(node, own, pages)

    def lock(self, match: Match) -> tuple[Node | None, list[int]]:
        """Keep a match from eviction: (the node to unlock later, its pages in order). Splits a partly matched node."""
        if match.node is None:
            return None, []
        node = self._split(match.node, match.node_pages) if match.node_pages < len(match.node.pages) else match.node
        self.lock_node(node)
        return node, self._path_pages(node)

    def lock_node(self, node: Node) -> None:
        for step in _path(node):
            if step.locks == 0:
                self.pages_evictable -= len(step.pages)
                self.pages_protected += len(step.pages)
                self._unlocked.pop(step, None)  # absent: a root, or split off just now
            step.locks += 1

    def unlock(self, node: Node) -> None:
        for step in _path(node):
            step.locks -= 1
            if step.locks == 0:
                self.pages_evictable += len(step.pages)
                self.pages_protected -= len(step.pages)
        self._touch(node)

    def insert(self, namespace: str, key: bytes | bytearray, pages: list[int], held: Node | None = None) -> Inserted:
        """Put a run of whole pages in the tree, which retains those that it lacked.

        Args:
            held: a node that the caller has locked; where only that lock holds the run's end, it grows in place.
        """
        node = self._roots.get(namespace)
        if node is None:
            node = self._roots[namespace] = Node(namespace, None, b"", [])
        match = self.match(namespace, key, len(pages))
        if match.node is not None:
            node = match.node
            if match.node_pages < len(node.pages):
                node = self._split(node, match.node_pages)
        if match.pages < len(pages):
            tail = bytes(key[match.pages * self._page_bytes : len(pages) * self._page_bytes])
            node = self._attach(node, tail, pages[match.pages :], held)
            self.version += 1
        self._touch(node)
        return Inserted(node, self._path_pages(node), len(pages) - match.pages)

    def evict(self, count: int) -> int:
        """Give up to `count` unlocked pages back to the pool, the ends of the least recently used runs first."""
        freed: list[int] = []
        while len(freed) < count and (node := next(iter(self._unlocked), None)) is not None:
            keep = max(0, len(node.pages) - (count - len(freed)))
            freed += node.pages[keep:]
            self._snapshots.drop(node)
            if keep:
                del node.pages[keep:]
                node.key = node.key[: keep * self._page_bytes]
            else:
                self._detach(node)
        self._pool.free(freed)
        self.pages_evictable -= len(freed)
        self.pages_evicted += len(freed)
        return len(freed)

    def below(self, namespace: str, key: bytes | bytearray, page: int) -> list[Node]:
        """The node that holds that page of the key's path, and all below, parents first; none where it isn't cached.

        Where the node begins before that page, it is split.
        """
        match = self.match(namespace, key, page + 1)
        if match.node is None or match.pages <= page:
            return []
        before = match.node_pages - 1  # pages of the node that come before
        if before:
            self._touch(self._split(match.node, before))
        return list(_subtree(match.node))

    def remove(self, nodes: list[Node]) -> None:
        """Give up unlocked nodes, all that is below them among them; parents first."""
        for node in reversed(nodes):
            self._snapshots.drop(node)
            self._pool.free(node.pages)
            self.pages_evictable -= len(node.pages)
            self._detach(node)

    def unlocked_pages(self, match: Match) -> int:
        """How many of the match's pages count as evictable now, and will not once it is locked."""
        if match.node is None or match.node.locks:
            return 0
        unlocked = match.node_pages
        parent = match.node.parent
        while parent is not None and parent.locks == 0:
            unlocked += len(parent.pages)
            parent = parent.parent
        return unlocked

    def nodes(self) -> Iterator[Node]:
        """Every node, roots included, parents first."""
        for root in self._roots.values():
            yield from _subtree(root)

    def unlocked(self) -> Iterator[Node]:
        """The nodes that may be evicted, in that order."""
        return iter(self._unlocked)

    def _common_pages(self, run: bytes, key: bytes | bytearray, start: int, end: int) -> int:
        """Whole pages that `run` and `key[start:end]` have in common, less than all of the run."""
        size = self._page_bytes
        low, high = 0, min(len(run), end - start) // size
        while low < high:  # the first `low` pages are equal, no more than `high` are
            middle = (low + high + 1) // 2
            if key.startswith(run[low * size : middle * size], start + low * size):
                low = middle
            else:
                high = middle - 1
        return low

    def _attach(self, node: Node, tail: bytes, pages: list[int], held: Node | None) -> Node:
        self._pool.retain(pages)
        own_locks = 1 if node is held else 0
        if node.pages and not node.children and node.locks == own_locks and node not in self._snapshots:
            # growing in place keeps a prompt of many chunks one node, not a chain of them; a snapshot is of the end
            node.key += tail
            node.pages.extend(pages)
            target = node
        else:
            target = Node(node.namespace, node, tail, list(pages))
            node.children[tail[: self._page_bytes]] = target
        if target.locks:
            self.pages_protected += len(pages)
        else:
            self.pages_evictable += len(pages)
        return target

    def _split(self, node: Node, count: int) -> Node:
        """Put a new node with the first `count` pages above.

        The old one keeps its end, which its locks and its snapshot mean.
        """
        cut = count * self._page_bytes
        upper = Node(node.namespace, node.parent, node.key[:cut], node.pages[:count])
        upper.locks = node.locks
        assert node.parent is not None  # only roots have none, and they have no pages to split
        node.parent.children[node.key[: self._page_bytes]] = upper
        node.parent, node.key = upper, node.key[cut:]
        del node.pages[:count]
        upper.children[node.key[: self._page_bytes]] = node
        return upper

    def _detach(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        del self._unlocked[node]
        del parent.children[node.key[: self._page_bytes]]
        node.parent = None
        if parent.parent is None and not parent.children:
            del self._roots[parent.namespace]

    def _touch(self, node: Node) -> None:
        """Make the node and its ancestors the last to be evicted, itself before its parent."""
        for step in _path(node):
            if step.locks == 0 and step.pages:
                self._unlocked[step] = None
                self._unlocked.move_to_end(step)

    def _path_pages(self, node: Node) -> list[int]:
        runs = [step.pages for step in _path(node)]
        return [page for run in reversed(runs) for page in run]


def _subtree(node: Node) -> Iterator[Node]:
    """The node and all below it, parents first."""
    stack = [node]
    while stack:
        found = stack.pop()
        yield found
        stack.extend(found.children.values())


def _path(node: Node | None) -> Iterator[Node]:
    """The node and its ancestors, itself first."""
    while node is not None:
        yield node
        node = node.parent


__all__ = ["Inserted", "Match", "Node", "RadixCache"]
