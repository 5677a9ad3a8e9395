"""Checks of the copy track pass on a right device and fail, by their own id, on a broken one."""

import pytest

from support.reference_runs import passes_on_cpu, run_on_reference, uncaught

TRACK = "copy"

#: requirement -> the fault that it catches
FAULTS = [
    ("AC-COPY-001", "tail_is_not_copied"),  # behind the last 16 bytes
    ("AC-COPY-001", "nan_is_normalised"),  # its bits are lost
    ("AC-COPY-002", "copy_writes_too_much"),  # up to the next 4 bytes
    ("AC-COPY-003", "strides_are_ignored"),  # of the source
    ("AC-COPY-004", "overlaps_copy_forwards"),  # 8 bytes at a time
    ("AC-COPY-005", "plain_copies_run_later"),  # than the computation behind them
    ("AC-COPY-006", "host_sources_are_read_late"),  # after the call returned
    ("AC-COPY-007", "host_targets_are_late"),  # incomplete on return
    ("AC-COPY-010", "freed_memory_is_reused_at_once"),  # while it is written to
    ("AC-COPY-011", "readers_are_not_tracked"),  # reused while it is read
    ("AC-COPY-012", "plain_sources_are_read_late"),  # when something comes back
]
KEYS = sorted({key for key, _ in FAULTS})


@pytest.mark.parametrize("key", KEYS)
def test_the_healthy_reference_passes(key):
    assert run_on_reference(key) == []


@pytest.mark.parametrize(("key", "fault"), FAULTS)
def test_a_broken_device_is_found(key, fault):
    assert run_on_reference(key, fault)


@pytest.mark.parametrize("key", KEYS)
def test_the_cpu_backend_passes_what_it_claims(key):
    assert passes_on_cpu(key) == []


def test_every_requirement_of_the_track_has_a_fault():
    assert uncaught(TRACK, KEYS) == []
