"""A library's own pool: pages are counted, groups and slots are laid out, and what a library refuses is told."""

import itertools

import pytest
import torch

from anychip_sdk.device import DeviceConfig
from anychip_sdk.errors import BackendBroken, KVPoolExhausted, MemoryInsufficient
from anychip_sdk.kv import PoolSpec, SlabKVPool
from anychip_sdk.native.loader import load_native_backend
from anychip_sdk.state import StateGroup, StateSpec, StateTensor


def spec(**changes):
    sizes = {"groups": (StateGroup(KV, 2),), "dtype": torch.bfloat16, "page_size": 4, "budget_bytes": 1 << 14}
    return PoolSpec(**{**sizes, **changes})


KV = StateSpec("kv", "paged", (StateTensor("k", (2, 4)), StateTensor("v", (2, 4))))
LATENT = StateSpec("latent", "paged", (StateTensor("latent", (6,)),))
RECURRENT = StateSpec("state", "slot", (StateTensor("state", (2, 3), torch.float32), StateTensor("inputs", (5,))))
SEVERAL = (StateGroup(KV, 2), StateGroup(LATENT, 1), StateGroup(RECURRENT, 3))


@pytest.mark.parametrize("page_size", [1, 16])
def test_the_pool_is_laid_out_as_the_default_one(example, device, page_size):
    pool, default = (
        example.create_kv_pool(spec(page_size=page_size), device),
        SlabKVPool(spec(page_size=page_size), device),
    )
    assert pool.layout == default.layout
    for index in range(2):
        for mine, theirs in zip(pool.tensors(0, index), default.tensors(0, index), strict=True):
            assert (mine.shape, mine.stride(), mine.dtype) == (theirs.shape, theirs.stride(), theirs.dtype)
    default.close()
    pool.close()
    pool.close()


def test_pages_are_counted_and_all_or_nothing(example, device):
    pool = example.create_kv_pool(spec(pages_max=6), device)
    first = pool.alloc(4)
    assert (first, pool.alloc(0)) == ([0, 1, 2, 3], [])
    with pytest.raises(KVPoolExhausted) as raised:
        pool.alloc(3)
    assert (raised.value.wanted, raised.value.free) == (3, 2)
    pool.retain([0, 1])
    assert (pool.refcount(0), pool.stats().pages_shared) == (2, 2)
    pool.free([0, 0, 2])
    assert [pool.refcount(page) for page in range(4)] == [0, 2, 0, 1]
    for wrong in ([3, 3], [2], [99], [-1]):
        with pytest.raises(ValueError, match=r"kv_pool\.free"):
            pool.free([1, *wrong])
    assert pool.refcount(1) == 2
    with pytest.raises(ValueError, match=r"kv_pool\.retain"):
        pool.retain([1, 0])
    assert pool.refcount(1) == 2
    assert (pool.stats().pages_total, pool.stats().pages_free) == (6, 4)
    pool.close()


def test_pages_are_copied_in_every_layer(example, device):
    pool = example.create_kv_pool(spec(), device)
    source, target = pool.alloc(2)
    for index in range(2):
        for which, cache in enumerate(pool.tensors(0, index)):
            cache[source] = 10 * index + which + 1
    pool.copy_pages([source], [target])
    for index in range(2):
        for which, cache in enumerate(pool.tensors(0, index)):
            assert cache[target].eq(10 * index + which + 1).all()
    with pytest.raises(ValueError, match="1 sources, 2 destinations"):
        pool.copy_pages([0], [0, 1])
    pool.close()


def test_a_pool_of_several_groups_is_laid_out_as_the_default_one(example, device):
    wanted = spec(groups=SEVERAL, slots=3)
    pool, default = example.create_kv_pool(wanted, device), SlabKVPool(wanted, device)
    assert pool.layout == default.layout
    for group, kept in enumerate(SEVERAL):
        for layer in range(kept.layers):
            for mine, theirs in zip(pool.tensors(group, layer), default.tensors(group, layer), strict=True):
                assert (mine.shape, mine.stride(), mine.dtype) == (theirs.shape, theirs.stride(), theirs.dtype)
                assert not mine.any()
                mine.copy_(torch.arange(mine.numel()).view(mine.shape) % 7 + group + layer)
                theirs.copy_(mine)
    for one in (pool, default):
        one.copy_pages([0, 2], [1, 3])
        one.copy_slots([2], [0])
        one.clear_slots([1])
    with pytest.raises(ValueError, match=r"kv_pool\.copy_slots: slot 3 is none of the pool's"):
        pool.copy_slots([0, 1], [2, 3])
    with pytest.raises(ValueError, match=r"kv_pool\.clear_slots: slot -1 is none of the pool's"):
        pool.clear_slots([0, -1])
    with pytest.raises(ValueError, match="1 sources, 2 destinations"):
        pool.copy_slots([0], [1, 2])
    for group, kept in enumerate(SEVERAL):
        for layer in range(kept.layers):
            for mine, theirs in zip(pool.tensors(group, layer), default.tensors(group, layer), strict=True):
                assert torch.equal(mine, theirs)
    default.close()
    pool.close()


def test_a_pool_gives_its_memory_back(example, device):
    before = device.memory().bytes_free
    pool = example.create_kv_pool(spec(budget_bytes=1 << 16), device)
    assert before - device.memory().bytes_free == 1 << 16
    pool.close()
    assert device.memory().bytes_free == before


ENTRIES = (StateGroup(StateSpec("state", "slot", (StateTensor("state", (5,), torch.float32),)), 2),)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.int64, torch.int32, torch.float16, torch.int8, torch.bool], ids=str
)
def test_states_of_any_dtype_have_their_room(example, device, dtype):
    odd = StateGroup(StateSpec("odd", "paged", (StateTensor("a", (3,), dtype), StateTensor("b", (3,)))), 2)
    wanted = spec(groups=(odd, *ENTRIES), pages_max=3, slots=2)
    pool, default = example.create_kv_pool(wanted, device), SlabKVPool(wanted, device)
    assert pool.layout == default.layout
    spans = [
        (tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes)
        for group, kept in enumerate(wanted.groups)
        for layer in range(kept.layers)
        for tensor in pool.tensors(group, layer)
    ]
    spans.sort()
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    assert spans[-1][1] - spans[0][0] == 3 * 4 * wanted.bytes_per_token + 2 * wanted.bytes_per_slot
    default.close()
    pool.close()


def test_a_pool_may_hold_slots_only(example, device):
    wanted = spec(groups=ENTRIES, slots=3)
    pool, default = example.create_kv_pool(wanted, device), SlabKVPool(wanted, device)
    assert pool.layout == default.layout
    assert [tuple(tensor.shape) for tensor in pool.tensors(0, 1)] == [(3, 5)]
    default.close()
    pool.close()


@pytest.mark.parametrize(("groups", "slots"), [((StateGroup(KV, 2),), 0), (SEVERAL, 3)])
def test_a_budget_without_a_page_is_refused_in_the_librarys_words(example, device, groups, slots):
    sizes = spec(groups=groups, slots=slots)
    least = 4 * sizes.bytes_per_token + slots * sizes.bytes_per_slot
    with pytest.raises(MemoryInsufficient, match=r"kv_pool\.create: the budget does not hold the slots and one page"):
        example.create_kv_pool(spec(groups=groups, slots=slots, budget_bytes=least - 1), device)
    pool = example.create_kv_pool(spec(groups=groups, slots=slots, budget_bytes=least), device)
    assert pool.layout.pages == 1
    pool.close()


def test_a_state_that_c_cannot_be_told_of_is_refused(example, device):
    for tensor, reason in (
        (StateTensor("z", (2,), torch.complex64), "z is of torch.complex64, which has no number"),
        (StateTensor("z", (1,) * 5), "z has 5 dimensions, at most 4"),
    ):
        with pytest.raises(BackendBroken, match=f"state 'odd': {reason}"):
            example.create_kv_pool(spec(groups=(StateGroup(StateSpec("odd", "paged", (tensor,)), 1),)), device)


def made_by(path, wanted):
    backend = load_native_backend(path, trial=False)
    return backend.create_kv_pool(wanted, backend.open(backend.find_device(None), DeviceConfig()))


def test_a_library_is_told_every_group_and_refuses_in_its_words(faulty):
    windowed = StateSpec("windowed", "paged", KV.tensors, window=7)
    wanted = spec(groups=(StateGroup(KV, 2), StateGroup(windowed, 4), StateGroup(RECURRENT, 3)), pages_max=9, slots=6)
    with pytest.raises(BackendBroken) as raised:
        made_by(faulty("pool refuses"), wanted)
    assert raised.value.message.endswith(
        "kv_pool.create: page size 4, slots 6, pages 9, bytes 16384"
        "; kv kind 0 layers 2 window 0, k dtype 3 2 4, v dtype 3 2 4"
        "; windowed kind 0 layers 4 window 7, k dtype 3 2 4, v dtype 3 2 4"
        "; state kind 1 layers 3 window 0, state dtype 0 2 3, inputs dtype 3 5"
    )


def test_slots_of_a_library_without_functions_for_them_are_copied_and_cleared_by_the_host(faulty):
    pool = made_by(faulty("pool"), spec(groups=ENTRIES, slots=4))
    kept = [pool.tensors(0, layer)[0] for layer in range(2)]
    for layer, tensor in enumerate(kept):
        tensor[:] = torch.arange(1, 5).view(4, 1) + 10 * layer
    pool.copy_slots([3, 0], [1, 2])
    pool.clear_slots([0])
    for layer, tensor in enumerate(kept):
        assert tensor[:, 0].tolist() == [0, 4 + 10 * layer, 1 + 10 * layer, 4 + 10 * layer]
        assert torch.equal(tensor, tensor[:, :1].expand(4, 5))
    pool.close()


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("pool of another shape", r"kv_pool\.tensors\(0, 0\): shape \(4, 6\), expected \(4, 5\) of torch\.float32"),
        ("pool of another dtype", r"kv_pool\.tensors\(0, 0\): .* expected \(4, 5\) of torch\.float32"),
        ("pool without a handle", r"kv_pool\.create gave no pool"),
    ],
)
def test_a_pool_that_breaks_the_contract_is_refused(faulty, fault, reason):
    with pytest.raises(BackendBroken, match=reason):
        made_by(faulty(fault), spec(groups=ENTRIES, slots=4))
