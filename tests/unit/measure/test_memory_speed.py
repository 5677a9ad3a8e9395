"""Results count with the memory's speed at which they came about. Knows no speed."""

import pytest

from anychip.measure import memory_speed
from anychip.measure.memory_speed import MemoryClock
from anychip_sdk.device import DeviceConfig
from support.plans import stub_backend


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(memory_speed, "COPIED_BYTES", 4096)
    backend = stub_backend()
    found = MemoryClock(backend.open(backend.probe()[0], DeviceConfig()))
    yield found
    found.close()


def looking(monkeypatch, *speeds):
    looks = iter(speeds)
    monkeypatch.setattr(MemoryClock, "bytes_per_s", lambda _: next(looks))


def test_memory_copies_at_some_speed(clock):
    assert clock.bytes_per_s() > 0
    assert clock._target.tolist() == clock._source.tolist() == [1] * 4096


def test_a_run_counts_during_which_memory_stayed_as_fast(clock, monkeypatch):
    looking(monkeypatch, 10.0, 20.0, 20.0, 21.0)
    runs = iter(("changed", "steady"))
    steady = clock.steadily(lambda: next(runs))
    assert (steady.result, steady.memory_bytes_per_s) == ("steady", 20.5)


def test_where_memory_never_stays_as_fast_the_last_run_counts(clock, monkeypatch):
    looking(monkeypatch, *[10.0, 20.0] * memory_speed.TRIES)
    runs = []
    steady = clock.steadily(lambda: runs.append(None))
    assert (len(runs), steady.memory_bytes_per_s) == (memory_speed.TRIES, 15.0)
