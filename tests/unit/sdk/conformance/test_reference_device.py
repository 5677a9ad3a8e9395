"""The reference chip behaves like a real one: late, counted, strict. Knows no requirement."""

import pickle
import threading

import pytest
import torch

from anychip_sdk.conformance.reference import AsyncReferenceDevice, AsyncReferencePlugin, ReferenceLoader
from anychip_sdk.conformance.reference.faults import FAULTS
from anychip_sdk.conformance.reference.ledger import Ledger
from anychip_sdk.conformance.reference.memory import POISON
from anychip_sdk.device import DeviceConfig
from anychip_sdk.errors import BackendBroken, DeviceAbsent, MemoryInsufficient


@pytest.fixture
def chips():
    return AsyncReferencePlugin(capacity_bytes=1 << 20)


@pytest.fixture
def device(chips):
    opened = chips.open_chip(0)
    opened.init(DeviceConfig())
    yield opened
    opened.close()


def test_a_backend_with_two_devices_and_kernels_of_its_own_is_loaded():
    backend = ReferenceLoader()()
    assert [info.name for info in backend.probe()] == ["refchip:0", "refchip:1"]
    assert all(backend.ops.kernels(op)[0].provider == "refchip" for op in backend.ops.catalogue)


def test_a_copy_of_the_loader_in_another_process_sees_the_same_memory():
    loader = ReferenceLoader()
    assert pickle.loads(pickle.dumps(loader)).run == loader.run
    assert ReferenceLoader().run != loader.run


def test_work_runs_in_the_streams_own_thread(device):
    seen = []
    stream = device.create_stream()
    stream.submit("look", lambda: seen.append(threading.get_ident()))
    stream.synchronize()
    assert seen != [threading.get_ident()]


def test_a_copy_waits_behind_a_delay_and_another_stream_does_not(device):
    slow, quick = device.create_stream(), device.create_stream()
    buffer, other = device.alloc(8), device.alloc(8)
    device.delay(slow, 0.05)
    device.copy(buffer, torch.full((8,), 1, dtype=torch.uint8), slow)
    late = slow.record()
    device.copy(other, torch.full((8,), 2, dtype=torch.uint8), quick)
    quick.synchronize()
    assert not late.query()
    assert buffer.tolist() == [0] * 8
    assert other.tolist() == [2] * 8
    device.synchronize()
    assert late.query()
    assert buffer.tolist() == [1] * 8


def test_memory_is_counted_in_granules_and_comes_back(device):
    buffer = device.alloc(513)
    assert device.memory().bytes_free == (1 << 20) - 1024
    device.free(buffer)
    assert device.memory().bytes_free == 1 << 20


def test_exhaustion_says_what_was_wanted_and_what_is_free(device):
    device.alloc(1 << 19)
    with pytest.raises(MemoryInsufficient, match=r"1000000 bytes wanted, 524288 free"):
        device.alloc(1_000_000)


def test_freed_memory_is_poisoned_and_new_memory_is_zero(device):
    buffer = device.alloc(100)
    device.free(buffer)
    assert (buffer == POISON).all()
    assert torch.full((4,), POISON, dtype=torch.uint8).view(torch.float32).isnan().all()
    assert not device.alloc(100).any()


def test_a_write_next_to_a_buffer_is_reported_at_the_next_synchronize(device):
    buffer = device.alloc(10)
    buffer.as_strided((11,), (1,))[10] = 7
    device.free(buffer)
    with pytest.raises(BackendBroken, match="free: something was written next to a buffer of 10 bytes"):
        device.synchronize()
    device.synchronize()


def test_an_error_of_queued_work_is_raised_once_and_names_it(device):
    stream = device.create_stream()
    device.copy(device.alloc(4), device.alloc(8), stream)
    with pytest.raises(BackendBroken, match="refchip:0: copy: "):
        device.synchronize()
    device.synchronize()


def test_memory_in_use_by_queued_work_is_recycled_when_that_is_done(device):
    stream = device.create_stream()
    source, target = device.alloc(16), device.alloc(16)
    device.delay(stream, 0.02)
    device.copy(target, source, stream)
    device.free(source)
    assert device.memory().bytes_free == (1 << 20) - 1024
    device.synchronize()
    assert device.memory().bytes_free == (1 << 20) - 512


def test_an_allocation_waits_for_freed_memory_that_is_still_in_use(device):
    stream = device.create_stream()
    source, target = device.alloc(1 << 19), device.alloc(1 << 18)
    device.delay(stream, 0.02)
    device.copy(target, source[: 1 << 18], stream)
    device.free(source)
    assert device.alloc(1 << 19).numel() == 1 << 19


def test_streams_and_buffers_of_another_device_are_refused(device, chips):
    other = chips.open_chip(1)
    other.init(DeviceConfig())
    with pytest.raises(ValueError, match="a buffer of refchip:1"):
        device.copy(other.alloc(4), torch.zeros(4, dtype=torch.uint8))
    with pytest.raises(ValueError, match="not one of its streams"):
        device.copy(device.alloc(4), torch.zeros(4, dtype=torch.uint8), other.create_stream())
    other.close()


def test_use_in_another_process_is_refused(device):
    device._process += 1
    with pytest.raises(DeviceAbsent, match="was opened in process"):
        device.synchronize()
    device._process -= 1


def test_closing_ends_all_threads_and_frees_all_memory(chips):
    before = threading.active_count()
    device = chips.open_chip(0)
    device.init(DeviceConfig())
    device.create_stream()
    device.alloc(1000)
    device.close()
    device.close()
    assert threading.active_count() == before
    assert chips.chips[0].bytes_free == 1 << 20


def test_a_ledger_counts_living_processes_only(tmp_path):
    ledger = Ledger(tmp_path)
    ledger.write(100)
    (tmp_path / "1").write_text("30")  # the first process always lives
    dead = tmp_path / "4194999"
    dead.write_text("7")
    assert ledger.bytes_elsewhere() == 30
    assert not dead.exists()


def test_every_fault_says_what_is_wrong_and_who_must_find_it():
    assert len(FAULTS) >= 45
    for fault in FAULTS.values():
        assert fault.text.endswith(".")
        assert fault.kills
        assert issubclass(fault.plugin.device_class, AsyncReferenceDevice)
