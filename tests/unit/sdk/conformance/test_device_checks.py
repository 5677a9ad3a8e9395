"""Checks of the device track pass on a right device and fail, by their own id, on a broken one."""

import pytest
import torch

from support.reference_runs import passes_on_cpu, run_on_reference, uncaught

pytestmark = pytest.mark.slow  # processes and clocks; the quick mutants stay in `make test`

TRACK = "device"

#: requirement -> the fault that it catches
FAULTS = [
    ("AC-DEVICE-001", "probe_changes_its_mind"),  # the order of devices alternates
    ("AC-DEVICE-002", "probe_needs_a_driver"),  # raises where the environment lacks a variable
    ("AC-DEVICE-003", "opened_is_another"),  # other versions than probed
    ("AC-DEVICE-003", "any_name_resolves"),  # device 4096 is accepted
    ("AC-DEVICE-004", "closes_once"),  # the second close raises
    ("AC-DEVICE-005", "patches_torch"),  # torch.nn.functional.hardtanh is replaced
    ("AC-DEVICE-006", "starts_a_thread"),  # at load
    ("AC-DEVICE-007", "dies_after_fork"),  # with a RuntimeError
    ("AC-DEVICE-009", "counts_all_devices"),  # one count for two devices
    ("AC-DEVICE-010", "frees_foreign_buffers"),  # under their owner's hands
    ("AC-DEVICE-010", "loses_foreign_work"),  # on another device's stream
    ("AC-DEVICE-011", "one_current_device"),  # for all threads
]
SLOW_FAULTS = [
    ("AC-DEVICE-007", "hangs_after_fork"),  # waits for threads that are not there
    ("AC-DEVICE-008", "memory_outlives_its_process"),  # is never given back
]
KEYS = sorted({key for key, _ in FAULTS + SLOW_FAULTS})


@pytest.mark.parametrize("key", KEYS)
def test_the_healthy_reference_passes(key):
    assert run_on_reference(key) == []


@pytest.mark.parametrize(("key", "fault"), FAULTS)
def test_a_broken_device_is_found(key, fault, monkeypatch):
    monkeypatch.setattr(torch.nn.functional, "hardtanh", torch.nn.functional.hardtanh)  # a fault replaces it
    assert run_on_reference(key, fault)


@pytest.mark.slow
@pytest.mark.parametrize(("key", "fault"), SLOW_FAULTS)
def test_a_device_that_never_answers_is_found(key, fault):
    assert run_on_reference(key, fault)


@pytest.mark.slow
@pytest.mark.parametrize("key", KEYS)
def test_the_cpu_backend_passes_what_it_claims(key):
    assert passes_on_cpu(key) == []


def test_every_requirement_of_the_track_has_a_fault():
    about_claims = ["AC-DEVICE-020", "AC-DEVICE-021"]  # of the manifest; their mutants are in test_mutants
    assert uncaught(TRACK, [*KEYS, *about_claims]) == []
