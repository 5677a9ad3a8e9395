"""Checks of the memory track pass on a right device and fail, by their own id, on a broken one."""

import random

import pytest

from anychip_sdk.conformance.checks._measure import theil_sen
from support.reference_runs import passes_on_cpu, run_on_reference, uncaught

pytestmark = pytest.mark.slow  # processes and clocks; the quick mutants stay in `make test`

TRACK = "memory"

#: requirement -> the fault that it catches
FAULTS = [
    ("AC-MEMORY-001", "total_follows_use"),  # the total shrinks
    ("AC-MEMORY-002", "free_bytes_are_stale"),  # never change
    ("AC-MEMORY-002", "small_buffers_are_not_counted"),  # below 4 KiB
    ("AC-MEMORY-003", "alignment_is_ignored"),  # 8 bytes off
    ("AC-MEMORY-004", "buffers_are_not_cleared"),  # hold what was there
    ("AC-MEMORY-005", "buffers_overlap"),  # now and then
    ("AC-MEMORY-006", "exhaustion_is_untyped"),  # RuntimeError: out of memory
    ("AC-MEMORY-006", "exhaustion_leaks"),  # 4 KiB for each refusal
    ("AC-MEMORY-007", "frees_twice"),  # and hands out twice
    ("AC-MEMORY-008", "kernel_reads_free_memory"),  # one column of a norm
    ("AC-MEMORY-009", "other_processes_are_not_counted"),  # their memory counts as free
    ("AC-MEMORY-010", "events_leak"),  # 4 KiB of host memory
    ("AC-MEMORY-010", "streams_leak_descriptors"),  # one each
    ("AC-MEMORY-010", "streams_leak_threads"),  # one each
    ("AC-MEMORY-010", "copies_leak_memory"),  # 512 device bytes
    ("AC-MEMORY-010", "opening_leaks"),  # a context
]
KEYS = sorted({key for key, _ in FAULTS})


@pytest.mark.parametrize("key", KEYS)
def test_the_healthy_reference_passes(key):
    assert run_on_reference(key) == []


@pytest.mark.parametrize(("key", "fault"), FAULTS)
def test_a_broken_device_is_found(key, fault):
    assert run_on_reference(key, fault)


@pytest.mark.slow
@pytest.mark.parametrize("key", KEYS)
def test_the_cpu_backend_passes_what_it_claims(key):
    assert passes_on_cpu(key) == []


def test_every_requirement_of_the_track_has_a_fault():
    assert uncaught(TRACK, KEYS) == []


def test_a_slope_is_found_behind_jumps_and_noise():
    noise = random.Random(0)
    values = [3.0 * i + noise.uniform(-5, 5) + (1e6 if i == 20 else 0) for i in range(60)]
    trend = theil_sen(values)
    assert trend.slope == pytest.approx(3.0, abs=0.1)
    assert 2.8 < trend.low < trend.slope < trend.high < 3.2


def test_noise_alone_has_no_slope():
    noise = random.Random(1)
    trend = theil_sen([noise.uniform(0, 1) for _ in range(60)])
    assert trend.low < 0 < trend.high


def test_a_single_step_is_no_slope():
    assert theil_sen([0.0] * 15 + [4096.0] * 85).slope == 0.0
