"""The budget never exceeds the device, and what an error advises really fits. Knows bytes; builds no model."""

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anychip.plan.memory import MAX_RUNNING, POOL_TOKENS_MIN, MemoryNeeds, budget, gib
from anychip_sdk.device import DeviceInfo
from anychip_sdk.errors import MemoryInsufficient

MIB, GIB = 2**20, 2**30


def share(needed, device, fraction=0.8, page_size=16, context=4096, kv_tokens_max=None, running=None):
    limits = {"kv_tokens_max": kv_tokens_max, "running": running}
    return budget(needed, device, fraction=fraction, page_size=page_size, context=context, **limits)


def device_of(total, free=None):
    return DeviceInfo("stub:0", "Stub One", total, total if free is None else free)


def advice(error):
    """What a hint says to set: key -> number."""
    found = re.findall(r"([\w.]+) to (?:at least )?([\d.]+)", error.hint)
    return {key: float(value) for key, value in found}


needs_of = st.builds(
    MemoryNeeds,
    weights=st.integers(1 * MIB, 40 * GIB),
    activations=st.integers(0, 8 * GIB),
    workspace=st.integers(0, 8 * GIB),
    kv_bytes_per_token=st.integers(256, 1 * MIB),
    bytes_per_slot=st.sampled_from([0, 0, 1 * MIB, 60 * MIB]),
)
cases = st.fixed_dictionaries(
    {
        "needed": needs_of,
        "total": st.integers(1 * GIB, 80 * GIB),
        "free_share": st.floats(0.01, 1.0),
        "fraction": st.floats(0.01, 1.0),
        "page_size": st.sampled_from([1, 3, 16, 48, 64, 100, 256]),
        "context": st.sampled_from([1, 8, 63, 64, 4096, 131072]),
        "kv_tokens_max": st.none() | st.integers(1, 10**6),
    }
)


def attempt(case, device):
    """(plan, None) or (None, error)."""
    try:
        return share(device=device, **case), None
    except MemoryInsufficient as error:
        return None, error


def changed_by(case, key, value):
    names = {"memory.static_fraction": "fraction", "memory.kv_tokens": "kv_tokens_max"}
    return {**case, names[key]: value if "fraction" in key else int(value)}


@settings(max_examples=300, deadline=None)
@given(cases)
def test_a_budget_fits_the_device_and_an_advice_is_right(case):
    total = case["total"]
    device = device_of(total, int(total * case["free_share"]))
    case = {key: value for key, value in case.items() if key not in ("total", "free_share")}
    plan, error = attempt(case, device)
    if plan is not None:
        tokens = plan.kv_pages * case["page_size"]
        assert plan.total <= device.memory_bytes_free
        assert plan.weights + plan.kv_pool <= plan.static_budget
        assert plan.kv_pool == tokens * plan.kv_bytes_per_token + plan.slots * plan.bytes_per_slot
        assert min(POOL_TOKENS_MIN, case["context"]) <= tokens <= MAX_RUNNING * case["context"]
        assert case["kv_tokens_max"] is None or tokens <= case["kv_tokens_max"]
        return
    for key, value in advice(error).items():
        again, second = attempt(changed_by(case, key, value), device)
        # what was advised is enough; at most something else is short as well
        assert again is not None or second.message.split()[:2] != error.message.split()[:2]


@settings(max_examples=200, deadline=None)
@given(needs_of, st.integers(0, 40 * GIB), st.floats(0.01, 0.99), st.sampled_from([1, 16, 48]))
def test_the_smallest_fraction_that_is_named_fits_and_a_smaller_one_does_not(needed, spare, share_of, page_size):
    least = needed.weights + 144 * needed.kv_bytes_per_token + 2 * needed.bytes_per_slot
    device = device_of(least + needed.activations + needed.workspace + spare)
    fraction = needed.weights / device.memory_bytes_total * share_of
    case = {"needed": needed, "fraction": fraction, "page_size": page_size}
    _, error = attempt(case, device)
    smallest = advice(error)["memory.static_fraction"]
    assert attempt({**case, "fraction": smallest}, device)[0] is not None
    assert attempt({**case, "fraction": smallest - 0.001}, device)[0] is None


NEEDED = MemoryNeeds(16 * GIB, 1 * GIB, 1 * GIB, 144 * 1024)


def test_a_fraction_that_does_not_hold_the_weights_is_told_with_one_that_does():
    with pytest.raises(MemoryInsufficient) as failed:
        share(NEEDED, device_of(64 * GIB), 0.2)
    assert failed.value.message == (
        "not enough memory: static_fraction 0.2 of 64.00 GiB is 12.80 GiB; the weights take 16.00 GiB, activations and "
        "workspace 2.00 GiB, leaving 0 tokens for the KV pool; 64 are needed"
    )
    assert failed.value.hint == "set memory.static_fraction to at least 0.251"
    assert failed.value.exit_code == 4


def test_a_device_that_is_too_small_is_told_so():
    with pytest.raises(MemoryInsufficient) as failed:
        share(NEEDED, device_of(8 * GIB))
    assert failed.value.hint == (
        "this device is too small for the model: 16.01 GiB are needed at least; choose a smaller model"
    )


def test_activations_that_are_too_large_are_told_with_what_sizes_them():
    large = replace(NEEDED, activations=6 * GIB)
    with pytest.raises(MemoryInsufficient) as failed:
        share(large, device_of(20 * GIB))
    assert "scheduler.chunked_prefill_size and scheduler.max_running_requests" in failed.value.hint
    assert "may take 3.99 GiB" in failed.value.hint


def test_memory_that_others_use_is_told_with_what_is_left():
    with pytest.raises(MemoryInsufficient) as failed:
        share(NEEDED, device_of(64 * GIB, 30 * GIB))
    assert failed.value.message == "device stub:0: 53.20 GiB are needed, 30.00 GiB of 64.00 GiB are free"
    assert advice(failed.value) == {"memory.static_fraction": 0.437, "memory.kv_tokens": 87376}
    with pytest.raises(MemoryInsufficient, match="choose a smaller model"):
        share(NEEDED, device_of(64 * GIB, 17 * GIB))


def test_too_few_tokens_asked_for_are_told_with_the_least():
    with pytest.raises(MemoryInsufficient) as failed:
        share(NEEDED, device_of(64 * GIB), kv_tokens_max=10)
    assert failed.value.message == "memory.kv_tokens is 10; at least 64 are needed (page size 16)"


def test_the_reason_says_what_decided_the_pool():
    assert share(NEEDED, device_of(64 * GIB)).kv_reason == "static_fraction 0.8 of 64.00 GiB, less the weights"
    assert share(NEEDED, device_of(64 * GIB), 1.0).kv_reason == "what activations and workspace leave of the device"
    assert share(NEEDED, device_of(64 * GIB), kv_tokens_max=4096).kv_reason == "memory.kv_tokens"
    assert "of the whole context" in share(NEEDED, device_of(64 * GIB), context=64).kv_reason


def test_bytes_are_said_for_people():
    assert [gib(512 * MIB), gib(GIB), gib(1536 * MIB), gib(-GIB)] == ["512 MiB", "1.00 GiB", "1.50 GiB", "-1.00 GiB"]


def test_slots_take_half_of_the_room_at_most_where_nobody_says_how_many():
    def slots(bytes_per_slot, running=None):
        return share(MemoryNeeds(4 * GIB, 0, 0, 1000, bytes_per_slot), device_of(20 * GIB), running=running).slots

    assert slots(0) == 0
    assert slots(GIB // 64) == 64  # room is 12 GiB
    assert slots(GIB // 2) == 12
    assert slots(5 * GIB) == 2
    assert slots(GIB // 2, running=10) == 20


def test_more_slots_than_fit_are_told_with_what_a_request_takes():
    needed = MemoryNeeds(GIB, 0, 0, 1000, GIB)
    with pytest.raises(MemoryInsufficient) as caught:
        share(needed, device_of(16 * GIB), running=10)
    assert "20 slots of states 20.00 GiB" in str(caught.value)
    assert caught.value.hint == "lower scheduler.max_running_requests: each takes two slots, 2.00 GiB"
    assert share(needed, device_of(16 * GIB), running=5).slots == 10
