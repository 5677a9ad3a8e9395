"""Time the prefix cache with many cached prefixes. Knows the tree and its pool; knows no model and no scheduler.

    python benchmarks/radix_cache.py [--prefixes 2000 100000] [--repeats 20]

Two trees. `leaves`: every prefix ends in one page of its own, so that evicting 1,000 pages takes 1,000 leaves. `chats`:
prompts of up to 4,096 tokens that share heads of different lengths. For each it prints the milliseconds of matching
a cached prompt of 4,096 tokens, of locking and unlocking it, and of evicting 1,000 pages: the least of all repeats,
which is what the work costs, and the median, which has the neighbours' share in it. The aim is a match under 1 ms, an
eviction under 2 ms, and no growth from the first number of prefixes to the last.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Sequence
from typing import NamedTuple

import torch

from anychip.engine.radix_cache import RadixCache
from anychip.engine.sequence import encode
from anychip_sdk.kv import KVPool, LedgerKVPool, PoolSpec
from anychip_sdk.state import StateGroup, StateSpec, StateTensor

PAGE = 16
PROMPT_PAGES = 256
EVICTED_PAGES = 1000


class BarePool(LedgerKVPool):
    """The book-keeping of a pool without its memory."""

    def __init__(self, pages: int) -> None:
        entry = StateGroup(StateSpec("entry", "paged", (StateTensor("entry", (2,)),)), 1)
        super().__init__(PoolSpec((entry,), torch.bfloat16, 4 * pages * PAGE, PAGE))

    def copy_pages(self, src: Sequence[int], dst: Sequence[int]) -> None:
        raise NotImplementedError("this pool has no memory")

    def tensors(self, group: int, layer: int) -> tuple[torch.Tensor, ...]:
        raise NotImplementedError("this pool has no memory")


class Tree(NamedTuple):
    cache: RadixCache
    prompt: bytes  #: of a cached prompt of PROMPT_PAGES pages

    def put(self, pool: KVPool, prompt: bytes) -> None:
        """Cache a prompt as a sequence that ends does."""
        count = len(prompt) // (4 * PAGE)
        held = self.cache.match("", prompt, count).pages
        pages = pool.alloc(count - held)
        # the leading pages are the tree's own already, so their numbers don't matter
        self.cache.insert("", prompt, [0] * held + pages)
        pool.free(pages)


def leaves(prefixes: int, pool: KVPool) -> Tree:
    """One long head, and `prefixes` leaves of one page below it."""
    head = encode(list(range(PAGE * (PROMPT_PAGES - 1))))
    tree = Tree(RadixCache(pool), head + encode([0] * PAGE))
    for number in range(prefixes):
        tree.put(pool, head + encode([number] * PAGE))
    return tree


def chats(prefixes: int, pool: KVPool) -> Tree:
    """Conversations: each goes on where an earlier one was, after a random part of it, by one to eight pages."""
    numbers = random.Random(0)
    prompt = encode([7] * (PAGE * PROMPT_PAGES))
    tree = Tree(RadixCache(pool), prompt)
    known = [prompt]
    tree.put(pool, prompt)
    for _ in range(prefixes - 1):
        earlier = numbers.choice(known)
        cut = numbers.randrange(1 + min(PROMPT_PAGES - 8, len(earlier) // (4 * PAGE)))
        longer = earlier[: 4 * PAGE * cut] + encode(numbers.choices(range(50000), k=PAGE * numbers.randint(1, 8)))
        tree.put(pool, longer)
        if len(known) < 1000:
            known.append(longer)
    return tree


TREES = {"leaves": leaves, "chats": chats}


class Times(NamedTuple):
    """Milliseconds, one list entry per repeat."""

    match: list[float]
    lock: list[float]
    evict: list[float]


def measure(tree: Tree, repeats: int) -> Times:
    times = Times([], [], [])
    for _ in range(repeats):
        started_s = time.perf_counter()
        match = tree.cache.match("", tree.prompt, PROMPT_PAGES)
        times.match.append(1e3 * (time.perf_counter() - started_s))
        assert match.pages == PROMPT_PAGES
        started_s = time.perf_counter()
        node, _ = tree.cache.lock(match)
        assert node is not None
        tree.cache.unlock(node)  # and so the prompt is the last to be evicted
        times.lock.append(1e3 * (time.perf_counter() - started_s))
    while tree.cache.pages_evictable >= EVICTED_PAGES + PROMPT_PAGES and len(times.evict) < repeats:
        started_s = time.perf_counter()
        evicted = tree.cache.evict(EVICTED_PAGES)
        times.evict.append(1e3 * (time.perf_counter() - started_s))
        assert evicted == EVICTED_PAGES
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prefixes", type=int, nargs="+", default=[2000, 20_000, 100_000])
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    if min(options.prefixes) <= EVICTED_PAGES:
        parser.error(f"--prefixes must be above {EVICTED_PAGES}, the pages that are evicted at once")
    columns = "".join(f"{name:>22}" for name in ("match ms", "lock+unlock ms", f"evict {EVICTED_PAGES} ms"))
    print(f"{'tree':<8} {'prefixes':>9} {'pages':>9}{columns}   (least / median)")
    for name, make in TREES.items():
        for prefixes in options.prefixes:
            pool = BarePool(9 * prefixes + PROMPT_PAGES)
            tree = make(prefixes, pool)
            pages = tree.cache.pages_evictable
            times = measure(tree, options.repeats)
            cells = "".join(f"{f'{min(one):.3f} / {statistics.median(one):.3f}':>22}" for one in times)
            print(f"{name:<8} {prefixes:>9} {pages:>9}{cells}", flush=True)


if __name__ == "__main__":
    main()
