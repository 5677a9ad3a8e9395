"""The scheduler's numbers, for metrics and status. Knows counts; decides nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from anychip.engine.kv_tables import KVTables


@dataclass
class Counters:
    """What happened since the start."""

    steps: int = 0
    steps_ahead: int = 0  #: of them, scheduled while the one before ran
    requests: int = 0
    finished: int = 0
    aborted: int = 0
    failed: int = 0
    retractions: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


class SchedulerStats(NamedTuple):
    """Counts now, then counts since the start."""

    running: int  #: sequences
    waiting: int  #: requests never admitted and sequences retracted
    pages_total: int
    pages_free: int
    pages_evictable: int  #: cached, used by nobody
    pages_protected: int  #: cached and in use
    pages_in_flight: int  #: in use, not cached
    steps: int
    steps_ahead: int
    requests: int
    finished: int  #: sequences that ended with "stop" or "length"
    aborted: int  #: requests
    failed: int  #: requests that ended alone, with an error
    retractions: int
    prompt_tokens: int  #: of requests admitted
    cached_tokens: int  #: of prompt_tokens, found in the cache at first admission
    completion_tokens: int
    pages_evicted: int


def snapshot(tables: KVTables, counters: Counters, *, running: int, waiting: int) -> SchedulerStats:
    cache, free = tables.cache, tables.pages_free
    evictable, protected = (0, 0) if cache is None else (cache.pages_evictable, cache.pages_protected)
    return SchedulerStats(
        running=running,
        waiting=waiting,
        pages_total=tables.pages_total,
        pages_free=free,
        pages_evictable=evictable,
        pages_protected=protected,
        pages_in_flight=tables.pages_total - free - evictable - protected,
        steps=counters.steps,
        steps_ahead=counters.steps_ahead,
        requests=counters.requests,
        finished=counters.finished,
        aborted=counters.aborted,
        failed=counters.failed,
        retractions=counters.retractions,
        prompt_tokens=counters.prompt_tokens,
        cached_tokens=counters.cached_tokens,
        completion_tokens=counters.completion_tokens,
        pages_evicted=0 if cache is None else cache.pages_evicted,
    )


__all__ = ["Counters", "SchedulerStats", "snapshot"]
