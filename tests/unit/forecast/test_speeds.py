"""Kept speeds count for just what was measured. Knows files."""

from dataclasses import replace

import pytest

from anychip.forecast.speeds import Known, Subject, find_speeds, keep
from anychip_sdk.errors import IntegrityFailed
from anychip_sdk.speeds import KernelSpeed, Speeds
from support.plans import stub_backend

SPEEDS = Speeds("measured on this machine, 2026-01-02", {"add a/add int8": KernelSpeed(1e-6, None, 2.0)}, None, 1e-4)
SHEET = Speeds("the vendor's data sheet", others=KernelSpeed(weight_bytes_per_s=1e12))


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("ANYCHIP_HOME", str(tmp_path))
    return tmp_path


def subject(**changes):
    backend = stub_backend()
    return Subject(backend, replace(backend.probe()[0], **changes))


def test_kept_speeds_are_found_again():
    keep([SPEEDS], subject())
    assert find_speeds(subject()) == Known(SPEEDS)


def test_what_was_measured_while_memory_was_otherwise_stays():
    slow, fast = (replace(SPEEDS, memory_bytes_per_s=speed) for speed in (20e9, 40e9))
    keep([fast], subject())
    keep([slow], subject())
    assert find_speeds(subject()) == Known(slow, faster=(fast,))
    newer = replace(fast, source="measured again", memory_bytes_per_s=42e9)
    keep([newer], subject())
    assert find_speeds(subject()).all == [slow, newer]
    keep([slow], subject(product="Stub Two"))
    assert find_speeds(subject(product="Stub Two")).all == [slow]


def test_nothing_measured_says_the_command():
    known = find_speeds(subject())
    assert known.speeds is None
    assert known.reason.endswith("never measured on this machine: platform devices --measure stub")


@pytest.mark.parametrize(
    "changes", [{"product": "Stub Two"}, {"versions": {"driver": "6"}}, {"attributes": {"a": "b"}}]
)
def test_speeds_of_another_device_do_not_count(changes):
    keep([SPEEDS], subject())
    known = find_speeds(subject(**changes))
    assert known.speeds is None
    assert "stub:0 was measured when" in known.reason


def test_speeds_on_other_threads_do_not_count():
    keep([SPEEDS], subject())
    reason = find_speeds(replace(subject(), threads=3)).reason
    assert "threads was the backend's choice, not 3" in reason


def test_a_data_sheet_counts_until_something_is_measured():
    assert find_speeds(subject(speeds=SHEET)).speeds == SHEET
    keep([SPEEDS], subject())
    assert find_speeds(subject(speeds=SHEET)).speeds == SPEEDS


def test_an_emulator_has_no_speeds():
    keep([SPEEDS], subject())
    emulated = subject()
    emulated.backend.emulated = True
    assert find_speeds(emulated) == Known(None, "an emulator's speed says nothing of the device's")


def test_a_shared_object_is_told_by_its_content(tmp_path):
    library = tmp_path / "chip.so"
    library.write_bytes(b"one")
    keep([SPEEDS], replace(subject(), library=str(library)))
    assert find_speeds(replace(subject(), library=str(library))).speeds == SPEEDS
    library.write_bytes(b"two")
    assert find_speeds(replace(subject(), library=str(library))).speeds is None


def test_a_damaged_file_is_told(home):
    path = keep([SPEEDS], subject())
    path.write_text("{")
    with pytest.raises(IntegrityFailed, match="damaged"):
        find_speeds(subject())
    keep([SPEEDS], subject())
    assert find_speeds(subject()).speeds == SPEEDS
    path.write_text('{"schema_version": 99}')
    assert "another anychip's" in find_speeds(subject()).reason
