"""In which order waiting requests are admitted. Knows the queue and cached prefixes; knows nothing of free memory."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from itertools import islice
from typing import Protocol

from anychip.engine.admission import SchedulerConfig
from anychip.engine.kv_tables import KVTables
from anychip.engine.radix_cache import Match
from anychip.engine.sequence import Sequence


class Policy(Protocol):
    def order(self, waiting: Iterable[Sequence]) -> list[Sequence]:
        """The candidates, the best first. Retracted ones are at the front of `waiting` and stay there."""
        ...

    def defers(self, candidate: Sequence, match: Match, prefilling: SequenceOf[Sequence]) -> bool:
        """Whether the candidate gains by letting others pass for now."""
        ...


class FirstComeFirstServed:
    def order(self, waiting: Iterable[Sequence]) -> list[Sequence]:
        return list(waiting)

    def defers(self, candidate: Sequence, match: Match, prefilling: SequenceOf[Sequence]) -> bool:
        return False


class LongestPrefixFirst:
    """Requests whose prompt is cached furthest go first, while it is still cached.

    Whoever was overtaken PATIENCE times goes before all that were not, in order of arrival; only the WINDOW oldest
    are compared. So the wait is bounded, and so is the work per step.
    """

    WINDOW = 64
    PATIENCE = 16

    def __init__(self, tables: KVTables, shared_prefix_tokens: int) -> None:
        self._tables = tables
        self._shared_prefix_tokens = shared_prefix_tokens

    def order(self, waiting: Iterable[Sequence]) -> list[Sequence]:
        window = list(islice(waiting, self.WINDOW))
        for sequence in window:
            self._refresh(sequence)
        return sorted(window, key=self._rank)  # stable: the queue's order decides between equals

    def defers(self, candidate: Sequence, match: Match, prefilling: SequenceOf[Sequence]) -> bool:
        """Wait while a running prefill computes a long prefix that the candidate lacks: it will be cached soon."""
        if not prefilling:
            return False
        page_size = self._tables.page_size
        goal = self._tables.pages_needed(match.pages * page_size + self._shared_prefix_tokens) * page_size
        if goal >= len(candidate.tokens):
            return False
        head = candidate.key_until(goal)
        namespace = candidate.request.namespace
        return any(other.request.namespace == namespace and other.key().startswith(head) for other in prefilling)

    def _rank(self, sequence: Sequence) -> tuple[int, int]:
        if sequence.is_admitted_before:
            return (0, 0)
        if sequence.overtaken >= self.PATIENCE:
            return (1, 0)
        return (2, -sequence.matched_tokens)

    def _refresh(self, sequence: Sequence) -> None:
        cache = self._tables.cache
        if cache is None or sequence.matched_version == cache.version:
            return
        sequence.matched_version = cache.version
        sequence.matched_tokens = self._tables.match(sequence).pages * self._tables.page_size


def make_policy(config: SchedulerConfig, tables: KVTables) -> Policy:
    """Without a prefix cache there is no prefix to prefer: lpm is fcfs then."""
    if config.policy == "lpm" and tables.cache is not None:
        return LongestPrefixFirst(tables, config.shared_prefix_tokens)
    return FirstComeFirstServed()


__all__ = ["FirstComeFirstServed", "LongestPrefixFirst", "Policy", "make_policy"]
