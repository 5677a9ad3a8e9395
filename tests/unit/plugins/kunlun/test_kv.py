"""The pool of pages whose heads come before their tokens."""

import pytest
import torch

from anychip_kunlun.kv import KunlunKVPool, head_major
from anychip_sdk.errors import MemoryInsufficient
from anychip_sdk.kv import TOKEN_MAJOR, KVSpec


def spec(**changes):
    values = {"layers": 2, "kv_heads": 2, "head_dim": 32, "dtype": torch.bfloat16, "page_size": 128}
    return KVSpec(**{**values, "budget_bytes": 1 << 20, **changes})


def test_memory_is_one_allocation_with_heads_before_tokens(rig, device):
    pool = KunlunKVPool(spec(), device)
    keys, values = pool.layer(1)
    assert pool.layout.axes == TOKEN_MAJOR
    assert keys.shape == (pool.layout.pages, 128, 2, 32)
    assert head_major(keys).shape == (pool.layout.pages, 2, 128, 32)
    assert head_major(keys).is_contiguous()
    assert keys.untyped_storage().data_ptr() == values.untyped_storage().data_ptr()


def test_pages_cost_no_call_of_the_driver(rig, device):
    pool = KunlunKVPool(spec(), device)
    allocations = rig.machine.card(0).allocator.driver.allocations
    for _ in range(50):
        pages = pool.alloc(3)
        pool.copy_pages(pages[:1], pages[1:2])
        pool.free(pages)
    assert rig.machine.card(0).allocator.driver.allocations == allocations


def test_a_copied_page_is_copied_in_all_layers_and_no_other_is_touched(device):
    pool = KunlunKVPool(spec(page_size=16), device)
    for layer in range(2):
        for cache in pool.layer(layer):
            cache.copy_(torch.randn(cache.shape, generator=torch.Generator().manual_seed(layer)))
    before = [cache.clone() for layer in range(2) for cache in pool.layer(layer)]
    pool.copy_pages([1], [4])
    for cache, old in zip((cache for layer in range(2) for cache in pool.layer(layer)), before, strict=True):
        assert torch.equal(cache[4], old[1])
        kept = [page for page in range(pool.layout.pages) if page != 4]
        assert torch.equal(cache[kept], old[kept])


def test_integers_need_scales_that_it_does_not_keep(device):
    with pytest.raises(MemoryInsufficient, match=r"torch\.int8 need scales"):
        KunlunKVPool(spec(dtype=torch.int8), device)


def test_a_budget_below_a_page_is_refused_with_the_pages_size(device):
    with pytest.raises(MemoryInsufficient, match="one page takes 65536 bytes, the budget is 100"):
        KunlunKVPool(spec(budget_bytes=100), device)


def test_a_closed_pool_gives_its_memory_back(device):
    before = device.memory().bytes_free
    KunlunKVPool(spec(), device).close()
    assert device.memory().bytes_free == before
