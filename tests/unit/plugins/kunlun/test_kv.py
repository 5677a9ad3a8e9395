"""The pool of pages whose heads come before their tokens."""

import pytest
import torch

from anychip_kunlun.kv import KunlunKVPool, head_major
from anychip_sdk.conformance.trial.pools import NewTensors
from anychip_sdk.errors import MemoryInsufficient
from anychip_sdk.kv import PoolSpec
from anychip_sdk.state import StateGroup, StateSpec, StateTensor

KV = StateSpec("kv", "paged", (StateTensor("k", (2, 32)), StateTensor("v", (2, 32))))
WINDOWED = StateSpec("kv", "paged", KV.tensors, window=64)
RECURRENT = StateSpec("state", "slot", (StateTensor("state", (2, 8), torch.float32),))


def spec(**changes):
    values = {"groups": (StateGroup(KV, 2),), "dtype": torch.bfloat16, "page_size": 128, "budget_bytes": 1 << 20}
    return PoolSpec(**{**values, **changes})


def test_memory_is_one_allocation_with_heads_before_tokens(rig, device):
    pool = KunlunKVPool(spec(), device)
    keys, values = pool.tensors(0, 1)
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
        for cache in pool.tensors(0, layer):
            cache.copy_(torch.randn(cache.shape, generator=torch.Generator().manual_seed(layer)))
    before = [cache.clone() for layer in range(2) for cache in pool.tensors(0, layer)]
    pool.copy_pages([1], [4])
    for cache, old in zip((cache for layer in range(2) for cache in pool.tensors(0, layer)), before, strict=True):
        assert torch.equal(cache[4], old[1])
        kept = [page for page in range(pool.layout.pages) if page != 4]
        assert torch.equal(cache[kept], old[kept])


def test_copying_pages_makes_no_tensor_of_a_layers_size(device):
    pool = KunlunKVPool(spec(page_size=16), device)
    page_bytes = 16 * 2 * 32 * 2  # of one layer and tensor
    with NewTensors(device.torch_device, page_bytes) as grown:
        pool.copy_pages([0, 1, 2], [3, 4, 5])
    assert grown.made == []


def test_all_groups_are_copied_and_slots_are_kept_apart(device):
    groups = (StateGroup(KV, 2), StateGroup(WINDOWED, 1), StateGroup(RECURRENT, 2))
    pool = KunlunKVPool(spec(groups=groups, page_size=16, slots=3), device)
    places = [(0, 0), (0, 1), (1, 0)]
    for group, layer in places:
        for cache in pool.tensors(group, layer):
            cache.copy_(torch.randn(cache.shape, generator=torch.Generator().manual_seed(10 * group + layer)))
    for layer in range(2):
        [state] = pool.tensors(2, layer)
        assert not state.any()
        state.copy_(torch.arange(state.numel()).view(state.shape) + layer)
    before = [cache.clone() for place in places for cache in pool.tensors(*place)]
    pool.copy_pages([1, 2], [4, 0])
    for old, cache in zip(before, (one for place in places for one in pool.tensors(*place)), strict=True):
        assert torch.equal(cache[[4, 0]], old[[1, 2]])
        assert torch.equal(cache[[1, 2, 3]], old[[1, 2, 3]])
    pool.copy_slots([0], [2])
    pool.clear_slots([0])
    for layer in range(2):
        [state] = pool.tensors(2, layer)
        assert torch.equal(state[2], torch.arange(16).view(2, 8).float() + layer)
        assert not state[0].any()


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
