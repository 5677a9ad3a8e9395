"""Checks of the stream track pass on a right device and fail, by their own id, on a broken one."""

import pytest

from support.reference_runs import passes_on_cpu, run_on_reference, uncaught

pytestmark = pytest.mark.slow  # processes and clocks; the quick mutants stay in `make test`

TRACK = "stream"

#: requirement -> the fault that it catches
FAULTS = [
    ("AC-STREAM-001", "launches_block"),  # until the work is done
    ("AC-STREAM-001", "events_are_always_done"),  # query says yes
    ("AC-STREAM-002", "events_are_never_done"),  # query says no
    ("AC-STREAM-003", "events_are_always_done"),  # before their work
    ("AC-STREAM-003", "events_are_early"),  # by a few milliseconds
    ("AC-STREAM-004", "copies_overtake"),  # what was queued before them
    ("AC-STREAM-005", "wait_does_nothing"),  # the old value is read
    ("AC-STREAM-006", "wait_blocks_the_host"),  # in the stream's stead
    ("AC-STREAM-007", "streams_are_serialised"),  # one after the other
    ("AC-STREAM-007", "copies_wait_for_all_streams"),  # delays overlap, copies don't
    ("AC-STREAM-007", "streams_take_turns"),  # short work passes, two delays take twice as long
    ("AC-STREAM-008", "elapsed_is_in_milliseconds"),  # off by a factor of 1000
    ("AC-STREAM-009", "synchronize_forgets_streams"),  # all but the first
    ("AC-STREAM-010", "destroying_drops_work"),  # that was queued
    ("AC-STREAM-011", "scratch_is_shared"),  # by all streams
    ("AC-STREAM-012", "synchronize_holds_the_interpreter"),  # no other thread runs
    ("AC-STREAM-013", "errors_are_swallowed"),  # nothing is raised
    ("AC-STREAM-013", "errors_are_nameless"),  # error 719
    ("AC-STREAM-014", "errors_stop_the_stream_silently"),  # later copies are dropped
    ("AC-STREAM-015", "stream_synchronize_does_nothing"),  # returns at once
    ("AC-STREAM-016", "streams_run_out"),  # from the 17th on
    ("AC-STREAM-017", "record_is_early"),  # before a late copy
    ("AC-STREAM-018", "record_waits_for_streams"),  # which are busy
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
