"""Which cached run is the least recently used. Knows an order of nodes; knows no page and no pool.

A heap with lazy deletion: an entry counts only while the node still carries its ticket, so taking a node out and
putting it back are O(log n), and no eviction ever looks at all leaves.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anychip.engine.radix_cache import Node

_SLACK = 64  # dead entries that are let be, besides as many as there are live ones


class EvictionQueue:
    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Node]] = []  # (last used, ticket, node); tickets are unique
        self._tickets = 0
        self._live = 0

    def __len__(self) -> int:
        return self._live

    def push(self, node: Node) -> None:
        """Put it at the place of its `last_used`, instead of where it was."""
        self.remove(node)
        self._tickets += 1
        node.ticket = self._tickets
        self._live += 1
        heapq.heappush(self._heap, (node.last_used, node.ticket, node))
        if len(self._heap) > 2 * self._live + _SLACK:
            self._compact()

    def remove(self, node: Node) -> None:
        if node.ticket:
            node.ticket = 0
            self._live -= 1

    def pop(self) -> Node | None:
        """The least recently used; None when there is none."""
        while self._heap:
            _, ticket, node = heapq.heappop(self._heap)
            if node.ticket == ticket:
                self.remove(node)
                return node
        return None

    def _compact(self) -> None:
        self._heap = [entry for entry in self._heap if entry[2].ticket == entry[1]]
        heapq.heapify(self._heap)


__all__ = ["EvictionQueue"]
