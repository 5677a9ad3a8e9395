"""The KV pool's book-keeping: layout, counts, errors, exhaustion, memory. Knows pages, no contents."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator

import torch

from anychip_sdk.conformance.claims import Claims
from anychip_sdk.conformance.context import Context
from anychip_sdk.conformance.requirements import Case, Level, Violation, expect, requirement
from anychip_sdk.conformance.trial.placing import keys_and_values
from anychip_sdk.conformance.trial.pools import (
    HEAD_DIM,
    KV_HEADS,
    LAYERS,
    NewTensors,
    caches,
    kv_dtype,
    pool_of,
    trapped,
)
from anychip_sdk.errors import KVPoolExhausted, MemoryInsufficient
from anychip_sdk.kv import KVPool, PoolSpec

PAGE_SIZES = (1, 16, 32, 64, 128)
TOKEN_BYTES = 2 * LAYERS * KV_HEADS * HEAD_DIM


def page_size_cases(claims: Claims, level: Level) -> Iterator[Case]:
    """One case for each page size."""
    for size in PAGE_SIZES:
        yield Case(f"page-size-{size}", {"page_size": size})


@requirement(
    "AC-KV-001",
    level="MUST",
    text="A pool's layout and tensors MUST be what was asked for: shapes, dtypes, and bytes per token and per slot.",
    covers=("hook:anychip_create_kv_pool",),
    cases=page_size_cases,
)
def layout_is_honest(context: Context, case: Case) -> None:
    page_size, dtype = case.params["page_size"], kv_dtype(context)
    with pool_of(context, 9, page_size) as pool:
        layout = pool.layout
        expect(layout == pool.layout, "the pool's layout differs from call to call", layout=str(layout))
        least = TOKEN_BYTES * dtype.itemsize
        expect(layout.bytes_per_token >= least, f"{layout.bytes_per_token} bytes per token are stated, {least} needed")
        expect(layout.bytes_per_slot == 0, f"{layout.bytes_per_slot} bytes per slot are stated, no group keeps slots")
        expect(layout.dtype == dtype, f"the layout's dtype is {layout.dtype}, {dtype} was asked for")
        wanted = (layout.pages, page_size, KV_HEADS, HEAD_DIM)
        for name, cache in caches(pool):
            expect(cache.dtype == dtype, f"{name}: the dtype is {cache.dtype}, the layout says {dtype}")
            expect(tuple(cache.shape) == wanted, f"{name}: the shape is {list(cache.shape)}, expected {list(wanted)}")


@requirement(
    "AC-KV-003",
    level="MUST",
    text="Freeing or retaining a page that is free, foreign or given back too often MUST raise ValueError and change "
    "nothing.",
)
def wrong_pages_are_refused(context: Context) -> None:
    with pool_of(context, 8, 16) as pool:
        held = pool.alloc(4)
        pool.retain(held[:1])
        pool.free(held[3:])
        gone, shared, last = held[3], held[0], pool.layout.pages
        wrong: tuple[tuple[str, Callable[[], object]], ...] = (
            ("free a free page", lambda: pool.free([gone])),
            ("free a page more often than it is held", lambda: pool.free([shared, shared, shared])),
            ("free a page twice in one call", lambda: pool.free([held[1], held[1]])),
            ("free a held page and a free one", lambda: pool.free([held[1], gone])),
            ("free a page behind the last", lambda: pool.free([last])),
            ("free a negative page", lambda: pool.free([-1])),
            ("free a held page and a foreign one", lambda: pool.free([held[2], last])),
            ("retain a free page", lambda: pool.retain([gone])),
            ("retain a held page and a free one", lambda: pool.retain([held[1], gone])),
            ("retain a page behind the last", lambda: pool.retain([last + 7])),
            ("ask for a foreign page's count", lambda: pool.refcount(last)),
            ("allocate a negative count", lambda: pool.alloc(-1)),
        )
        for what, call in wrong:
            _expect_refused(pool, what, call, ValueError)


@requirement(
    "AC-KV-004",
    level="MUST",
    text="An allocation of more pages than are free MUST raise KVPoolExhausted with both counts, take none, and the "
    "pages that are free MUST still be given afterwards.",
)
def exhaustion_takes_nothing(context: Context) -> None:
    with pool_of(context, 11, 16) as pool:
        total = pool.layout.pages
        for held in (0, 1, total - 1, total):
            mine = pool.alloc(held)
            free = total - held
            for wanted in (free + 1, total + 1, 1 << 20):
                error = _expect_refused(
                    pool, f"allocate {wanted} of {free} pages", _taking(pool, wanted), KVPoolExhausted
                )
                if isinstance(error, KVPoolExhausted):
                    told = (error.wanted, error.free)
                    expect(told == (wanted, free), f"the error says {told} wanted and free, expected {(wanted, free)}")
            rest = pool.alloc(free)
            expect(sorted(mine + rest) == list(range(total)), f"after a refusal, {free} pages should be free: {rest}")
            pool.free(mine + rest)


@requirement(
    "AC-KV-005",
    level="MUST",
    text="After a pool is made, allocating, sharing, copying and freeing pages MUST NOT allocate device memory.",
)
def nothing_is_allocated_later(context: Context) -> None:
    with pool_of(context, 24, 64) as pool:
        page_bytes = pool.layout.bytes_per_token * pool.layout.page_size
        # the caches of one layer and kind are the smallest piece by which a pool could grow
        grown = NewTensors(context.device.torch_device, page_bytes // (2 * LAYERS))
        before = context.device.memory().bytes_free
        with trapped(context.device) as trap:
            for count in range(context.scaled(100, 400)):
                with grown:
                    pages = pool.alloc(1 + count % pool.layout.pages)
                    pool.retain(pages)
                    pool.stats()
                    pool.free(pages)
                if len(pages) > 1:
                    pool.copy_pages(pages[:1], pages[1:2])
                with grown:
                    caches(pool)
                    pool.free(pages)
        context.device.synchronize()
        expect(not trap.calls, f"after its making the pool called the device: {', '.join(trap.calls[:5])}")
        expect(not grown.made, f"after its making the pool made tensors: {', '.join(grown.made[:5])}")
        if context.claims.holds("exact_accounting"):
            now = context.device.memory().bytes_free
            expect(now == before, f"the device has {before - now} free bytes fewer after pages were used")


@requirement(
    "AC-KV-009",
    level="MUST",
    text="Whatever was allocated and freed before, any number of pages up to the free ones MUST be allocatable at "
    "once, each page once.",
)
def fragments_do_not_matter(context: Context) -> None:
    with pool_of(context, 40, 16) as pool:
        generator = context.generator()
        held: list[list[int]] = []
        for turn in range(context.scaled(100, 500)):
            free = pool.layout.pages - sum(map(len, held))
            wanted = int(torch.randint(free + 1, (1,), generator=generator))
            try:
                held.append(pool.alloc(wanted))
            except KVPoolExhausted as error:
                message = f"turn {turn}: {free} pages are free, {wanted} were refused: {error}"
                raise Violation(message, held=held) from error
            out = [page for pages in held for page in pages]
            right = len(held[-1]) == wanted and len(set(out)) == len(out) and set(out) <= set(range(pool.layout.pages))
            expect(right, f"turn {turn}: {wanted} pages wanted, {held[-1]} given beside pages that are out", held=held)
            for _ in range(int(torch.randint(3, (1,), generator=generator))):
                if held:
                    pool.free(held.pop(int(torch.randint(len(held), (1,), generator=generator))))


@requirement(
    "AC-KV-010",
    level="MUST",
    text="Closing a pool MUST give its memory back to the device.",
)
def closing_gives_memory_back(context: Context) -> None:
    before = context.device.memory().bytes_free
    with trapped(context.device) as trap:
        for _ in range(3):
            with pool_of(context, 64, 16) as pool:
                pages = pool.alloc(3)
                tensors = [weakref.ref(cache) for _, cache in caches(pool)]
                pool.free(pages)
            del pool
            gc.collect()
            left = sum(trap.given.values())
            expect(not left, f"a closed pool has not given {left} bytes back that it allocated from the device")
            alive = sum(tensor() is not None for tensor in tensors)
            expect(not alive, f"{alive} caches of a closed pool still exist")
    if context.claims.holds("exact_accounting"):
        context.device.synchronize()
        now = context.device.memory().bytes_free
        expect(now == before, f"the device has {before - now} free bytes fewer after pools were closed")


@requirement(
    "AC-KV-013",
    level="MUST",
    text="A pool MUST stay within its budget and page limit, MUST use at least half of the budget, and MUST refuse a "
    "budget below one page with MemoryInsufficient.",
)
def budgets_are_kept(context: Context) -> None:
    dtype = kv_dtype(context)
    page_bytes = TOKEN_BYTES * dtype.itemsize * 16
    for pages, limit in ((33, None), (100, 7), (5, 100)):
        budget = pages * page_bytes + page_bytes // 2
        with trapped(context.device) as trap:
            pool = context.backend.create_kv_pool(_spec(dtype, budget, limit), context.device)
            allowed = min(pages, limit or pages)
            found, taken = pool.layout.pages, sum(trap.given.values())
            what = f"a budget of {pages}.5 pages with the limit {limit}: {found} pages"
            expect((allowed + 1) // 2 <= found <= allowed, f"{what}, expected at most {allowed} and at least half")
            expect(taken <= budget, f"{what}, {taken} bytes taken from the device for a budget of {budget}")
            expect(pool.stats().pages_total == found, f"{what}, stats say {pool.stats().pages_total}")
            pool.close()
    try:
        context.backend.create_kv_pool(_spec(dtype, page_bytes // 2, None), context.device)
    except MemoryInsufficient:
        return
    except Exception as error:
        message = f"a budget of half a page raised {type(error).__name__}: {error}; expected MemoryInsufficient"
        raise Violation(message) from error
    raise Violation("a budget of half a page was accepted, expected MemoryInsufficient")


@requirement(
    "AC-KV-014",
    level="MUST",
    text="The caches MUST begin at multiples of the layout's alignment, and each MUST be the same tensor on each call.",
    cases=page_size_cases,
)
def caches_are_aligned_and_stay(context: Context, case: Case) -> None:
    with pool_of(context, 8, case.params["page_size"]) as pool:
        alignment = pool.layout.alignment
        expect(alignment >= 1 and alignment & (alignment - 1) == 0, f"the alignment {alignment} is no power of two")
        first = caches(pool)
        for (name, cache), (_, again) in zip(first, caches(pool), strict=True):
            off = cache.data_ptr() % alignment
            expect(off == 0, f"the {name} begin {off} bytes behind a multiple of {alignment}")
            same = cache.data_ptr() == again.data_ptr() and cache.stride() == again.stride()
            expect(same, f"layer() gives other {name} on the second call")


def _spec(dtype: torch.dtype, budget_bytes: int, pages_max: int | None) -> PoolSpec:
    return PoolSpec((keys_and_values(KV_HEADS, HEAD_DIM, LAYERS),), dtype, budget_bytes, 16, pages_max)


def _taking(pool: KVPool, count: int) -> Callable[[], object]:
    return lambda: pool.alloc(count)


def _state(pool: KVPool) -> tuple[object, ...]:
    return (pool.stats(), *(pool.refcount(page) for page in range(pool.layout.pages)))


def _expect_refused(pool: KVPool, what: str, call: Callable[[], object], error: type[Exception]) -> Exception:
    """The call raises that error and leaves every count as it was."""
    before, answer, refused = _state(pool), None, None
    try:
        answer = call()
    except error as expected:
        refused = expected
    except Exception as other:
        message = f"to {what} raised {type(other).__name__}: {other}; expected {error.__name__}"
        raise Violation(message) from other
    if refused is None:
        message = f"to {what} was accepted (it returned {answer!r}), expected {error.__name__}"
        raise Violation(message)
    expect(_state(pool) == before, f"to {what} is refused, but counts changed", before=before, after=_state(pool))
    return refused


__all__ = [
    "PAGE_SIZES",
    "budgets_are_kept",
    "caches_are_aligned_and_stay",
    "closing_gives_memory_back",
    "exhaustion_takes_nothing",
    "fragments_do_not_matter",
    "layout_is_honest",
    "nothing_is_allocated_later",
    "page_size_cases",
    "wrong_pages_are_refused",
]
