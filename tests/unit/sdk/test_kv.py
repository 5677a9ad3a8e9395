"""The KV pool: its ledger against a simple model, and its pages' content. Knows no sequence."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anychip_sdk import PoolSpec, SlabKVPool, StateGroup, StateSpec, StateTensor
from anychip_sdk.errors import KVPoolExhausted, MemoryInsufficient
from anychip_sdk.kv import PageLedger
from anychip_sdk.state import grouped
from anychip_sdk.testing import ReferenceDevice

PAGES = 8
KV = StateGroup(StateSpec("kv", "paged", (StateTensor("k", (2, 4)), StateTensor("v", (2, 4)))), 2)


def pool(*, page_size=2, budget_pages=PAGES, device=None, **changes):
    spec = PoolSpec((KV,), torch.float32, 0, page_size, **changes)
    budget = budget_pages * page_size * spec.bytes_per_token + 3
    return SlabKVPool(replace(spec, budget_bytes=budget), device or ReferenceDevice())


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["alloc", "free", "retain"]), st.integers(0, 5)), max_size=60))
def test_the_ledger_behaves_as_a_multiset_of_references(steps):
    ledger, model = PageLedger(PAGES), Counter()
    for verb, amount in steps:
        held = sorted(model)
        if verb == "alloc":
            if amount > PAGES - len(model):
                with pytest.raises(KVPoolExhausted) as caught:
                    ledger.alloc(amount)
                assert (caught.value.wanted, caught.value.free) == (amount, PAGES - len(model))
            else:
                pages = ledger.alloc(amount)
                assert len(set(pages)) == amount
                assert not set(pages) & set(model)
                model.update(pages)
        elif held:
            page = held[amount % len(held)]
            getattr(ledger, verb)([page])
            model[page] += 1 if verb == "retain" else -1
            model += Counter()
        assert all(ledger.refcount(page) == model[page] for page in range(PAGES))
        stats = ledger.stats()
        assert stats.pages_total == PAGES
        assert stats.pages_free == ledger.pages_free == PAGES - len(model)
        assert stats.pages_used == len(model)
        assert stats.pages_shared == sum(count > 1 for count in model.values())


def test_allocation_is_all_or_nothing():
    ledger = PageLedger(3)
    ledger.alloc(2)
    with pytest.raises(KVPoolExhausted):
        ledger.alloc(2)
    assert ledger.pages_free == 1
    assert ledger.alloc(1) == [2]


def test_freed_pages_are_used_again_and_low_numbers_come_first():
    ledger = PageLedger(4)
    assert ledger.alloc(3) == [0, 1, 2]
    ledger.free([1])
    assert ledger.alloc(1) == [1]


@pytest.mark.parametrize(("pages", "word"), [([0], "0 references"), ([1, 1], "1 references"), ([9], "not one of")])
def test_freeing_too_much_is_refused_and_changes_nothing(pages, word):
    ledger = PageLedger(3)
    ledger.alloc(2)
    ledger.free([0])
    with pytest.raises(ValueError, match=word):
        ledger.free([1, *pages] if pages != [1, 1] else pages)
    assert ledger.refcount(1) == 1


def test_retaining_a_free_page_is_refused():
    with pytest.raises(ValueError, match="0 references"):
        PageLedger(2).retain([1])


def test_a_shared_page_is_free_after_its_last_reference():
    ledger = PageLedger(2)
    pages = ledger.alloc(1)
    ledger.retain(pages)
    ledger.free(pages)
    assert ledger.pages_free == 1
    ledger.free(pages)
    assert ledger.pages_free == 2


def test_negative_counts_are_refused():
    with pytest.raises(ValueError, match="-1"):
        PageLedger(2).alloc(-1)


@pytest.mark.parametrize("page_size", [1, 3, 16])
def test_the_pool_takes_as_many_pages_as_the_budget_holds(page_size):
    made = pool(page_size=page_size)
    assert made.layout.pages == PAGES
    assert made.layout.page_size == page_size
    k, v = made.tensors(0, 1)
    assert k.shape == v.shape == (PAGES, page_size, 2, 4)
    assert not k.any()


def test_pages_max_limits_the_pool():
    assert pool(pages_max=3).layout.pages == 3


def test_a_budget_below_one_page_is_an_error_with_both_numbers():
    with pytest.raises(MemoryInsufficient, match=r"one page takes 256 bytes, the budget is 3"):
        pool(budget_pages=0)


def test_copying_pages_copies_all_layers_and_nothing_else():
    made = pool()
    generator = torch.Generator().manual_seed(0)
    for layer in range(2):
        for cache in made.tensors(0, layer):
            cache.copy_(torch.randn(cache.shape, generator=generator))
    before = [cache.clone() for layer in range(2) for cache in made.tensors(0, layer)]
    made.copy_pages([1, 2], [5, 0])
    for cache, old in zip((c for layer in range(2) for c in made.tensors(0, layer)), before, strict=True):
        assert torch.equal(cache[[5, 0]], old[[1, 2]])
        assert torch.equal(cache[[1, 2, 3, 4, 6, 7]], old[[1, 2, 3, 4, 6, 7]])


def test_copying_needs_as_many_sources_as_destinations():
    with pytest.raises(ValueError, match="2 sources, 1 destinations"):
        pool().copy_pages([0, 1], [2])


def test_layers_do_not_overlap():
    made = pool()
    made.tensors(0, 0)[0].fill_(1)
    assert not made.tensors(0, 0)[1].any()
    assert not made.tensors(0, 1)[0].any()


def test_the_pool_is_one_allocation_that_close_gives_back():
    device = ReferenceDevice()
    made = pool(device=device)
    used = device.bytes_used
    made.free(made.alloc(5))
    assert device.bytes_used == device.bytes_peak == used > 0
    made.close()
    assert device.bytes_used == 0


SLOTS = StateGroup(StateSpec("state", "slot", (StateTensor("s", (2, 3)), StateTensor("wide", (5,), torch.float64))), 3)


def slotted(**changes):
    spec = PoolSpec((KV, SLOTS), torch.float32, 1 << 16, 2, PAGES, slots=4)
    return SlabKVPool(replace(spec, **changes), ReferenceDevice())


def test_states_in_slots_have_their_own_shape_and_dtype():
    made = slotted()
    state, wide = made.tensors(1, 2)
    assert state.shape == (4, 2, 3)
    assert (wide.shape, wide.dtype) == ((4, 5), torch.float64)
    assert made.layout.bytes_per_slot == 3 * (2 * 3 * 4 + 5 * 8)
    assert made.layout.bytes_per_token == 2 * 2 * 2 * 4 * 4


def test_slots_are_paid_for_before_pages():
    page, slots = 2 * 2 * 2 * 2 * 4 * 4, 4 * 3 * (2 * 3 * 4 + 5 * 8)
    assert slotted(budget_bytes=slots + 3 * page + 1, pages_max=None).layout.pages == 3
    with pytest.raises(MemoryInsufficient, match=f"4 slots take {slots}"):
        slotted(budget_bytes=slots, pages_max=None)


def test_copying_and_clearing_slots_touches_those_slots_alone():
    made = slotted()
    for layer in range(3):
        for tensor in made.tensors(1, layer):
            tensor.copy_(torch.arange(tensor.numel()).view(tensor.shape) + 1 + layer)
    before = [tensor.clone() for layer in range(3) for tensor in made.tensors(1, layer)]
    made.copy_slots([1], [3])
    made.clear_slots([0])
    for old, tensor in zip(before, (one for layer in range(3) for one in made.tensors(1, layer)), strict=True):
        assert torch.equal(tensor[3], old[1])
        assert not tensor[0].any()
        assert torch.equal(tensor[1:3], old[1:3])


def test_equal_states_are_one_group_in_the_order_of_the_model():
    window = replace(KV.spec, window=8)
    groups, places = grouped([KV.spec, window, KV.spec, SLOTS.spec, window])
    assert groups == (StateGroup(KV.spec, 2), StateGroup(window, 2), StateGroup(SLOTS.spec, 1))
    assert places == ((0, 0), (1, 0), (0, 1), (2, 0), (1, 1))


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: StateSpec("s", "paged", ()), "expected at least one"),
        (lambda: StateSpec("s", "paged", (StateTensor("a", (1,)), StateTensor("a", (2,)))), "no name twice"),
        (lambda: StateSpec("s", "slot", (StateTensor("a", (1,)),), window=4), "a slot has no window"),
    ],
)
def test_a_state_that_makes_no_sense_is_refused(build, said):
    with pytest.raises(ValueError, match=said):
        build()
