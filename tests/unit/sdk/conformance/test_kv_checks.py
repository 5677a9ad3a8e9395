"""The KV track: nothing is found on healthy pools, each fault is found by the requirement that it names."""

from dataclasses import replace

import pytest
import torch

from anychip_sdk.backend import load_backend
from anychip_sdk.conformance.reference import reference_claims
from anychip_sdk.conformance.reference.plugin import AsyncReferencePlugin
from anychip_sdk.conformance.requirements import REQUIREMENTS
from anychip_sdk.conformance.trial.pools import NewTensors, trapped
from anychip_sdk.hooks import hookimpl
from anychip_sdk.kv import SlabKVPool
from anychip_sdk.testing import ReferenceDevice
from support.op_kv_checks import KV_IDS, claims_for, kills, violations
from support.reference_runs import load_cpu

FAULTS = kills("AC-KV")


@pytest.mark.parametrize("key", KV_IDS)
def test_the_healthy_chip_fails_nothing(key):
    assert violations(key, None, reference_claims()) == []


@pytest.mark.parametrize("key", KV_IDS)
def test_the_cpu_backend_fails_nothing(key):
    assert violations(key, load_cpu, claims_for(dtypes=("bfloat16",), more={"exact_accounting": False})) == []


@pytest.mark.parametrize(("fault", "key"), FAULTS, ids=[fault for fault, _ in FAULTS])
def test_a_fault_is_found_by_its_requirement(fault, key):
    found = violations(key, fault, reference_claims())
    assert found
    assert all(text.startswith(key) for text in found)


def test_every_requirement_that_must_hold_finds_a_fault():
    must = {key for key in KV_IDS if REQUIREMENTS[key].force == "MUST"}
    assert must - {key for _, key in FAULTS} == set()


def test_a_transposed_page_is_found_at_its_page_size_alone():
    found = violations("AC-KV-007", "pages_of32_are_transposed", reference_claims())
    assert [text.partition(":")[0] for text in found] == ["AC-KV-007[page-size-32]"]


def test_a_wrong_history_is_told_in_its_shortest_form():
    (found,) = violations("AC-KV-002", "retain_counts_double", reference_claims())
    assert found == "AC-KV-002: page 0 has 3 references, expected 2; after alloc(1) retain([0])"


class HeadMajorPlugin(AsyncReferencePlugin):
    """A right backend whose memory has heads before slots."""

    @hookimpl
    def anychip_create_kv_pool(self, spec, device):
        return SlabKVPool(spec, device, heads_first=True)

    def kernels(self):
        def write(k, v, k_cache, v_cache, step, group):
            size, slots = step.page_size, step.paged(group).slots
            for cache, value in ((k_cache, k), (v_cache, v)):
                assert cache.transpose(1, 2).is_contiguous() or not cache.numel()
                cache.transpose(1, 2)[slots // size, :, slots % size] = value
            return k_cache, v_cache

        return {**super().kernels(), "kv_write": write}


@pytest.mark.parametrize("key", [*KV_IDS, "AC-OP-001", "AC-OP-011"])
def test_another_order_of_memory_is_right(key):
    def load():
        return load_backend("refchip", HeadMajorPlugin(), distribution="test", version="1")

    claims = claims_for(dtypes=("bfloat16",))
    claims = replace(claims, ops={name: ("bfloat16",) for name in ("kv_write", "paged_attention")})
    assert violations(key, load, claims) == []


def test_a_trap_notes_allocations_and_is_gone_afterwards():
    device = ReferenceDevice()
    with trapped(device) as trap:
        buffer = device.alloc(128)
        assert trap.given == {buffer.data_ptr(): 128}
        device.free(buffer)
    device.free(device.alloc(64))
    assert trap.calls == ["alloc(128)", "free"]
    assert trap.given == {}


def test_views_are_no_new_tensors_and_small_ones_are_ignored():
    value = torch.zeros(64)
    with NewTensors(torch.device("cpu"), 256) as seen:
        value.view(8, 8).t()
        value.add_(1)
        torch.zeros(8)
        assert seen.made == []
        value + 1
    assert len(seen.made) == 1
