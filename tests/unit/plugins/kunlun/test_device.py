"""An opened card: names, memory, copies, queues, errors that come late."""

import threading
from types import SimpleNamespace

import pytest
import torch

from anychip_kunlun.streams import QUEUES_MAX
from anychip_sdk.errors import DeviceAbsent, DeviceLost, MemoryInsufficient

MIB = 1 << 20


def test_its_two_names_are_one_device(device):
    for name in ("kunlun", "kunlun:0", "cuda:0"):
        assert device.resolve(name) == device.torch_device
    for name in ("xpu:0", "kunlun:1", "cuda:9"):
        with pytest.raises(DeviceAbsent, match="opened: kunlun:0, which is cuda:0 too"):
            device.resolve(name)


def test_the_recipes_name_finds_the_card(make_rig):
    rig = make_rig(cards=2)
    assert rig.backend.find_device("cuda:1").name == "kunlun:1"


def test_kernels_run_on_the_opened_card_in_any_thread(make_rig):
    rig = make_rig(cards=2)
    device = rig.open("kunlun:1")
    x = device.alloc(4 * 64).view(torch.float32).view(2, 32)
    y = device.alloc(4 * 32).view(torch.float32).view(2, 16)
    thread = threading.Thread(target=lambda: rig.plugin._vendor.call("swiglu", x=x, y=y))
    thread.start()
    thread.join()
    device.synchronize()  # a new thread begins with card 0, on which this launch would have failed


def test_new_memory_is_zeroed_and_aligned(device):
    for alignment in (64, 512, 4096):
        buffer = device.alloc(1000, alignment)
        assert not buffer.any()
        assert buffer.data_ptr() % alignment == 0


def test_memory_counts_what_torch_keeps_in_reserve_as_free(device):
    before = device.memory().bytes_free
    buffer = device.alloc(30 * MIB)
    assert device.memory().bytes_free <= before - 30 * MIB
    del buffer
    assert device.memory().bytes_free == before


def test_too_much_is_refused_with_both_figures(device):
    with pytest.raises(MemoryInsufficient, match=r"kunlun:0: 134217728 bytes wanted; \d+ free"):
        device.alloc(128 * MIB)


def test_an_event_behind_what_ran_without_a_stream_waits_for_no_stream(device):
    stream = device.create_stream()
    device.delay(stream, 0.2)
    target = device.alloc(8)
    target.fill_(3)
    event = device.record()
    event.synchronize()
    busy = stream.record()
    assert event.query()
    assert not busy.query()
    stream.wait(event)
    stream.synchronize()
    assert busy.elapsed_s(event) > 0.1


def test_copies_of_overlapping_views_go_through_a_third(device):
    buffer = device.alloc(8)
    buffer.copy_(torch.arange(8, dtype=torch.uint8))
    device.copy(buffer[2:], buffer[:6])
    assert buffer.tolist() == [0, 1, 0, 1, 2, 3, 4, 5]


def test_a_copy_keeps_its_tensors_until_it_ran(device):
    stream = device.create_stream()
    target = device.alloc(MIB)
    device.delay(stream, 0.02)
    device.copy(target, device.alloc(MIB).fill_(7), stream)  # nobody else holds the source
    device.alloc(MIB).fill_(1)
    stream.synchronize()
    assert bool((target == 7).all())


def test_more_streams_than_queues_share_them(device):
    streams = [device.create_stream() for _ in range(3 * QUEUES_MAX)]
    assert len({id(stream.raw) for stream in streams}) == QUEUES_MAX
    for stream in streams:
        device.destroy_stream(stream)
    assert device.create_stream() is not None


def test_a_forked_process_may_not_use_the_device(rig, monkeypatch):
    device = rig.open()
    monkeypatch.setattr("anychip_kunlun.trail.os", SimpleNamespace(getpid=lambda: -1))
    with pytest.raises(DeviceLost, match="which forked this one"):
        device.alloc(1)


def test_a_late_error_names_the_last_op_and_ends_the_device(rig):
    device = rig.open()
    x, y = torch.ones(2, 32), torch.empty(2, 16)
    rig.machine.inject(700)
    rig.plugin._vendor.call("swiglu", x=x, y=y)  # the chip answers only when somebody waits
    with pytest.raises(DeviceLost, match=r"illegal memory access.*the last op queued was kunlun_ops\.swiglu"):
        device.synchronize()
    for use in (device.synchronize, device.memory, lambda: device.alloc(1), device.create_stream):
        with pytest.raises(DeviceLost, match="started again"):
            use()
    device.close()
