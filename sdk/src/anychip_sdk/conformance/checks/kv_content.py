"""What is in the KV pool: written tokens, copied pages, shared pages, former tenants.

Tokens are written by the backend's own kernel and read by page and slot alone.
"""

from __future__ import annotations

import torch

from anychip_sdk.conformance.checks.kv import page_size_cases
from anychip_sdk.conformance.context import Context
from anychip_sdk.conformance.requirements import Case, Violation, expect, requirement
from anychip_sdk.conformance.trial.oracle import judge, launch, same_bits
from anychip_sdk.conformance.trial.placing import Placed
from anychip_sdk.conformance.trial.pools import (
    HEAD_DIM,
    KV_HEADS,
    LAYERS,
    caches,
    kv_dtype,
    pool_of,
)
from anychip_sdk.conformance.trial.trials import resolved
from anychip_sdk.kv import KVPool
from anychip_sdk.step import Paged, Step

HEADS = 4
SIZES = {"heads": HEADS, "kv_heads": KV_HEADS, "head_dim": HEAD_DIM}


@requirement(
    "AC-KV-006",
    level="MUST",
    text="copy_pages MUST copy whole pages in all layers, keys and values, bit for bit, and MUST change nothing else.",
    cases=page_size_cases,
)
def copies_are_exact_and_complete(context: Context, case: Case) -> None:
    with pool_of(context, 13, case.params["page_size"]) as pool:
        _fill(context, pool, "random")
        before = _bytes(context, pool)
        pages = pool.alloc(pool.layout.pages)
        order = torch.randperm(len(pages), generator=context.generator("pages")).tolist()
        src, dst = ([pages[i] for i in part] for part in (order[:5], order[5:10]))
        pool.copy_pages(src, dst)
        pool.copy_pages([], [])
        after = _bytes(context, pool)
        origin = {**{page: page for page in range(pool.layout.pages)}, **dict(zip(dst, src, strict=True))}
        for name, old in before.items():
            for page, source in origin.items():
                want, got = old[source], after[name][page]
                if not same_bits(got, want):
                    what = f"is no copy of page {source}" if source != page else "was changed"
                    message = f"copy_pages({src}, {dst}): in the {name}, page {page} {what}"
                    raise Violation(message, got=got, expected=want)


@requirement(
    "AC-KV-007",
    level="MUST",
    text="Each token's key and value MUST be where its slot says, in its layer alone, whatever the page size.",
    covers=("op:kv_write",),
    cases=page_size_cases,
)
def tokens_are_where_the_layout_says(context: Context, case: Case) -> None:
    page_size = case.params["page_size"]
    with pool_of(context, 12, page_size) as pool:
        _fill(context, pool, 3.0)
        pages = pool.alloc(7)[::-1]
        slots = [pages[i % 7] * page_size + (5 * i + i // 7) % page_size for i in range(7 * min(page_size, 3))]
        slots = sorted(set(slots), key=lambda slot: slot * 7919 % 1009)
        written = {}
        for layer in range(LAYERS):
            written[layer] = _write(context, pool, layer, slots, f"layer {layer}")
        for i, (name, cache) in enumerate(caches(pool)):
            host = cache.cpu()
            mine = dict(zip(slots, written[i // 2][i % 2], strict=True))
            untouched = torch.full((KV_HEADS, HEAD_DIM), 3.0, dtype=host.dtype)
            for slot in range(pool.layout.pages * page_size):
                got = host[slot // page_size, slot % page_size]
                want = mine.get(slot, untouched)
                if not same_bits(got, want):
                    what = "doesn't hold what was written there" if slot in mine else "was written, though no token's"
                    place = f"page {slot // page_size}, slot {slot % page_size}"
                    message = f"in the {name}, {place} of {page_size} {what}"
                    raise Violation(message, got=got, expected=want, slots=slots)


@requirement(
    "AC-KV-008",
    level="MUST",
    text="Attention MUST NOT read what former tenants left in reused pages, nor slots behind a sequence's end.",
    covers=("op:paged_attention",),
    cases=page_size_cases,
)
def former_tenants_are_not_read(context: Context, case: Case) -> None:
    page_size = case.params["page_size"]
    with pool_of(context, 24, page_size) as pool:
        tenant = pool.alloc(pool.layout.pages)
        _fill(context, pool, float("nan"))
        pool.free(tenant)
        for salt, (first, second) in enumerate(((1, 2), (page_size, page_size + 1), (2 * page_size - 1, 3))):
            pages = pool.alloc(-(-first // page_size) + -(-second // page_size))
            _attend(context, pool, pages, (first, second), str(salt))
            _poison(context, pool, pages)
            pool.free(pages)


@requirement(
    "AC-KV-011",
    level="MUST",
    text="Layers, keys and values MUST NOT share memory: each cache MUST keep what was written to it.",
)
def caches_do_not_overlap(context: Context) -> None:
    with pool_of(context, 6, 16) as pool:
        for number, (_, cache) in enumerate(caches(pool)):
            cache.fill_(float(number + 1))
        context.device.synchronize()
        for number, (name, cache) in enumerate(caches(pool)):
            wrong = int((cache.cpu() != number + 1).sum())
            expect(wrong == 0, f"{wrong} elements of the {name} were overwritten through another cache")


@requirement(
    "AC-KV-012",
    level="MUST",
    text="After a shared page is copied, writing to the copy MUST leave the other holder's bytes as they were.",
    cases=page_size_cases,
)
def writing_a_copy_leaves_the_original(context: Context, case: Case) -> None:
    page_size = case.params["page_size"]
    with pool_of(context, 6, page_size) as pool:
        _fill(context, pool, "random")
        (shared,) = pool.alloc(1)
        pool.retain([shared])
        before = _bytes(context, pool)
        (own,) = pool.alloc(1)
        pool.copy_pages([shared], [own])
        pool.free([shared])
        counts = (pool.refcount(shared), pool.refcount(own))
        expect(counts == (1, 1), f"after the copy, the two pages have {counts} references, expected one each")
        slot = own * page_size + page_size - 1
        written = [_write(context, pool, layer, [slot], f"copy {layer}") for layer in range(LAYERS)]
        for i, (name, cache) in enumerate(caches(pool)):
            host = cache.cpu()
            kept = same_bits(host[shared], before[name][shared])
            expect(kept, f"writing to the copy (page {own}) changed the {name} of the original (page {shared})")
            for at in range(page_size):
                last = at == page_size - 1
                want = written[i // 2][i % 2][0] if last else before[name][shared, at]
                got = host[own, at]
                expect(same_bits(got, want), f"in the {name}, slot {at} of the copy (page {own}) is wrong", got=got)


def _fill(context: Context, pool: KVPool, what: float | str) -> None:
    """A constant, or random numbers that differ everywhere, in every cache."""
    for name, cache in caches(pool):
        if isinstance(what, str):
            values = torch.randn(cache.shape, generator=context.generator(name), dtype=torch.float64)
            cache.copy_(values.to(cache.dtype))
        else:
            cache.fill_(what)
    context.device.synchronize()


def _bytes(context: Context, pool: KVPool) -> dict[str, torch.Tensor]:
    context.device.synchronize()
    return {name: cache.cpu().clone() for name, cache in caches(pool)}


def _poison(context: Context, pool: KVPool, pages: list[int]) -> None:
    for _, cache in caches(pool):
        for page in pages:
            cache[page].fill_(float("nan"))
    context.device.synchronize()


def _write(
    context: Context, pool: KVPool, layer: int, slots: list[int], salt: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Random keys and values [tokens, kv_heads, head_dim], written by the backend's kernel; returns them."""
    generator, dtype, device = context.generator(salt), kv_dtype(context), context.device.torch_device
    shape = (len(slots), KV_HEADS, HEAD_DIM)
    k, v = (torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for _ in range(2))
    k_cache, v_cache = pool.tensors(0, layer)
    args = (k.to(device), v.to(device), k_cache, v_cache, _written(slots, pool.layout.page_size).to(device), 0)
    one = resolved(context, "kv_write", dtype, args, {**SIZES, "page_size": pool.layout.page_size})
    launch(context, one, Placed(list(args)))
    return k, v


def _attend(context: Context, pool: KVPool, pages: list[int], contexts: tuple[int, int], salt: str) -> None:
    """A decode row and a prompt over reused pages, judged by a reference that sees their own tokens alone."""
    page_size, dtype, device = pool.layout.page_size, kv_dtype(context), context.device.torch_device
    step = _step(pages, contexts, page_size)
    table = step.paged(0).page_table
    slots = [
        int(table[row, at // page_size]) * page_size + at % page_size
        for row, length in enumerate(contexts)
        for at in range(length)
    ]
    k, v = _write(context, pool, 0, slots, salt)
    shape = (pool.layout.pages * page_size, KV_HEADS, HEAD_DIM)
    known = [torch.full(shape, torch.nan, dtype=dtype) for _ in range(2)]
    for cache, values in zip(known, (k, v), strict=True):
        cache[slots] = values
    paged = [cache.view(pool.layout.pages, page_size, KV_HEADS, HEAD_DIM) for cache in known]
    q = torch.randn(1 + contexts[1], HEADS, HEAD_DIM, generator=context.generator(f"q {salt}"), dtype=torch.float64)
    scale = HEAD_DIM**-0.5
    plain = (scale, None, 0, None, None)
    args = (q.to(dtype), *paged, step, *plain)
    one = resolved(context, "paged_attention", dtype, args, {**SIZES, "page_size": page_size})
    given = [args[0].to(device), *pool.tensors(0, 0), step.to(device), *plain]
    (out,) = launch(context, one, Placed(given))
    judge(context, one, (out.cpu(),))


def _step(pages: list[int], contexts: tuple[int, int], page_size: int) -> Step:
    """One decode row with the first context, one prompt of all tokens of the second."""
    counts = [-(-length // page_size) for length in contexts]
    table = torch.zeros(2, max(counts), dtype=torch.int32)
    table[0, : counts[0]] = torch.tensor(pages[: counts[0]], dtype=torch.int32)
    table[1, : counts[1]] = torch.tensor(pages[counts[0] :], dtype=torch.int32)
    places = [(0, contexts[0] - 1), *((1, at) for at in range(contexts[1]))]
    slots = [int(table[row, at // page_size]) * page_size + at % page_size for row, at in places]
    return Step(
        token_ids=torch.zeros(len(places), dtype=torch.int64),
        positions=torch.tensor([at for _, at in places]),
        query_start=torch.tensor([0, 1, 1 + contexts[1]], dtype=torch.int32),
        context_lens=torch.tensor(contexts, dtype=torch.int32),
        logit_rows=torch.tensor([0, contexts[1]]),
        groups=(Paged(table, torch.tensor(slots)),),
        page_size=page_size,
        decode_rows=1,
        query_lens_host=(1, contexts[1]),
        context_lens_host=contexts,
    )


def _written(slots: list[int], page_size: int) -> Step:
    """The first tokens of as many sequences, each in a slot of its own."""
    count = len(slots)
    table = torch.tensor([[slot // page_size] for slot in slots], dtype=torch.int32)
    return Step(
        token_ids=torch.zeros(count, dtype=torch.int64),
        positions=torch.zeros(count, dtype=torch.int64),
        query_start=torch.arange(count + 1, dtype=torch.int32),
        context_lens=torch.ones(count, dtype=torch.int32),
        logit_rows=torch.arange(count),
        groups=(Paged(table, torch.tensor(slots)),),
        page_size=page_size,
        decode_rows=count,
        query_lens_host=(1,) * count,
        context_lens_host=(1,) * count,
    )


__all__: list[str] = []
