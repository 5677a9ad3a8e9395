"""Streams, events, deferred copies and deferred errors."""

from __future__ import annotations

import os
import threading
import time

import pytest
import torch

from anychip_kunlun.emulator.streams import QUEUES
from anychip_kunlun.stack import Stack

DELAY_S = 0.05


def on_card(stack: Stack, values: torch.Tensor, index: int = 0) -> torch.Tensor:
    return stack.empty(values.shape, values.dtype, index).copy_(values)


def test_a_copy_on_a_stream_is_done_at_its_synchronize_not_before(host: Stack) -> None:
    source, target = on_card(host, torch.arange(8)), on_card(host, torch.zeros(8, dtype=torch.int64))
    stream = host.accelerator.Stream()
    host.delay(stream, DELAY_S)
    host.copy(target, source, stream)
    assert not bool(target.any())
    stream.synchronize()
    assert torch.equal(target, torch.arange(8))


def test_blocking_streams_defer_nothing(open_host) -> None:
    stack = open_host(blocking_streams=True)
    source, target = on_card(stack, torch.arange(8)), on_card(stack, torch.zeros(8, dtype=torch.int64))
    stream = stack.accelerator.Stream()
    stack.delay(stream, DELAY_S)
    stack.copy(target, source, stream)
    assert torch.equal(target, torch.arange(8))


def test_host_memory_is_done_with_when_the_copy_returns(host: Stack) -> None:
    target, stream = on_card(host, torch.zeros(8)), host.accelerator.Stream()
    source = torch.ones(8)
    host.delay(stream, DELAY_S)
    host.copy(target, source, stream)
    source.zero_()
    back = torch.zeros(8)
    host.copy(back, target, stream)
    assert torch.equal(back, torch.ones(8))


def test_copies_that_do_not_fit_are_refused_at_the_call(host: Stack) -> None:
    with pytest.raises(RuntimeError, match="expand"):
        host.copy(torch.zeros(4), torch.zeros(8), None)


def test_an_event_orders_two_streams(host: Stack) -> None:
    first, second = host.accelerator.Stream(), host.accelerator.Stream()
    source, between = on_card(host, torch.ones(8)), on_card(host, torch.zeros(8))
    target = on_card(host, torch.zeros(8))
    host.delay(first, DELAY_S)
    host.copy(between, source, first)
    second.wait_event(first.record_event())
    host.copy(target, between, second)
    second.synchronize()
    assert torch.equal(target, torch.ones(8))


def test_without_an_event_two_streams_do_not_wait(host: Stack) -> None:
    first, second = host.accelerator.Stream(), host.accelerator.Stream()
    source, between = on_card(host, torch.ones(8)), on_card(host, torch.zeros(8))
    target = on_card(host, torch.zeros(8))
    host.delay(first, DELAY_S)
    host.copy(between, source, first)
    host.copy(target, between, second)
    second.synchronize()
    assert not bool(target.any())
    first.synchronize()


def test_events_measure_the_time_between_them(host: Stack) -> None:
    stream = host.accelerator.Stream()
    first, last = (host.accelerator.Event(enable_timing=True) for _ in range(2))
    first.record(stream)
    host.delay(stream, DELAY_S)
    last.record(stream)
    assert not last.query()
    with pytest.raises(ValueError, match="completed"):
        first.elapsed_time(last)
    last.synchronize()
    assert first.elapsed_time(last) >= DELAY_S * 1000


def test_events_without_timing_and_between_processes_are_refused(host: Stack) -> None:
    one = host.accelerator.Event()
    with pytest.raises(ValueError, match="enable_timing"):
        one.elapsed_time(one)
    with pytest.raises(RuntimeError, match="712"):
        host.accelerator.Event(interprocess=True)


def test_an_event_that_was_never_recorded_is_done(host: Stack) -> None:
    event = host.accelerator.Event()
    assert event.query()
    event.synchronize()


def test_dummy_events_are_always_done(host: Stack) -> None:
    host.environ["XPU_DUMMY_EVENT"] = "1"
    stream = host.accelerator.Stream()
    host.delay(stream, DELAY_S)
    event = stream.record_event()
    assert event.query()
    event.synchronize()
    stream.synchronize()


def test_streams_beyond_the_queues_share_them(host: Stack) -> None:
    streams = [host.accelerator.Stream() for _ in range(QUEUES + 1)]
    host.delay(streams[0], DELAY_S)
    event = streams[QUEUES].record_event()
    other = streams[1].record_event()
    other.synchronize()
    assert not event.query()
    event.synchronize()


def test_a_copy_whose_memory_was_freed_breaks_the_card(host: Stack) -> None:
    source, target = on_card(host, torch.ones(8)), on_card(host, torch.zeros(8))
    stream = host.accelerator.Stream()
    host.delay(stream, DELAY_S)
    host.copy(target, source, stream)
    del source
    with pytest.raises(RuntimeError, match=r"illegal memory access.*copy: memory that was freed"):
        stream.synchronize()


def test_torch_ops_inside_a_stream_see_what_was_queued_before(host: Stack) -> None:
    source, target = on_card(host, torch.ones(8)), on_card(host, torch.zeros(8))
    stream = host.accelerator.Stream()
    with host.accelerator.stream(stream):
        assert host.accelerator.current_stream() is stream
        host.delay(stream, DELAY_S)
        host.copy(target, source, None)
        doubled = target * 2
    assert host.accelerator.current_stream() is host.accelerator.default_stream()
    assert torch.equal(doubled, torch.full((8,), 2.0))


def test_kernels_inside_a_stream_run_later(host: Stack) -> None:
    x, y = on_card(host, torch.ones(2, 8)), on_card(host, torch.zeros(2, 4))
    stream = host.accelerator.Stream()
    host.delay(stream, DELAY_S)
    with host.accelerator.stream(stream):
        host.load("kunlun_ops").swiglu(x, y)
    assert not bool(y.any())
    host.accelerator.synchronize()
    assert bool((y > 0.7).all())


def swiglu(stack: Stack, index: int = 0) -> torch.Tensor:
    y = on_card(stack, torch.zeros(2, 4), index)
    stack.load("kunlun_ops").swiglu(on_card(stack, torch.ones(2, 8), index), y)
    return y


def test_a_fault_is_heard_of_at_the_next_synchronize_only(open_host) -> None:
    from anychip_kunlun.emulator import Fault

    stack = open_host(fault=Fault(714, 2, "swiglu"))
    assert bool(swiglu(stack).any())
    assert not bool(swiglu(stack).any())
    with pytest.raises(RuntimeError, match=r"714.*swiglu"):
        stack.accelerator.synchronize()
    with pytest.raises(RuntimeError, match="714"):
        swiglu(stack)


def test_a_copy_to_the_host_brings_the_error_too(open_host) -> None:
    from anychip_kunlun.emulator import Fault

    stack = open_host(fault=Fault(700, 1))
    y = swiglu(stack)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        stack.copy(torch.zeros(2, 4), y, None)


def test_a_fault_can_be_injected_while_the_host_runs(host: Stack) -> None:
    swiglu(host)
    host.accelerator.emulator.inject(700, after=1)
    swiglu(host)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        host.accelerator.current_stream().synchronize()
    host.accelerator.emulator.revive(0)
    assert bool(swiglu(host).any())
    host.accelerator.synchronize()


def test_a_fault_file_is_one_fault(open_host, tmp_path) -> None:
    file = tmp_path / "fault"
    stack = open_host(fault_file=file)
    swiglu(stack)
    stack.accelerator.synchronize()
    file.touch()
    swiglu(stack)
    assert not file.exists()
    with pytest.raises(RuntimeError, match="700"):
        stack.accelerator.synchronize()


def test_a_new_thread_begins_on_card_0(open_host) -> None:
    stack = open_host(cards=2)
    stack.accelerator.set_device(1)
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(stack.accelerator.current_device()))
    thread.start()
    thread.join()
    assert (seen, stack.accelerator.current_device()) == ([0], 1)


def test_a_kernel_on_another_cards_tensors_breaks_the_current_one(open_host) -> None:
    stack = open_host(cards=2)
    swiglu(stack, 1)
    with pytest.raises(RuntimeError, match=r"700.*cuda:1"):
        stack.accelerator.synchronize(0)
    stack.accelerator.synchronize(1)


def test_tensors_of_two_cards_are_refused(open_host) -> None:
    stack = open_host(cards=2)
    x, y = on_card(stack, torch.ones(2, 8), 0), on_card(stack, torch.zeros(2, 4), 1)
    with pytest.raises(RuntimeError, match="same device"):
        stack.load("kunlun_ops").swiglu(x, y)


def test_visible_devices_number_the_cards_anew(open_host) -> None:
    stack = open_host(cards=3)
    stack.environ["XPU_VISIBLE_DEVICES"] = "2,0"
    assert stack.accelerator.device_count() == 2
    one = stack.empty((8,), torch.float32, 0)
    card, _ = stack.accelerator.emulator.owner(one)
    assert card.index == 2
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        stack.accelerator.set_device(2)


def test_the_first_launch_is_slow_where_ops_are_compiled(open_host) -> None:
    stack = open_host(compile_s=DELAY_S)
    times = []
    for _ in range(2):
        started_s = time.perf_counter()
        swiglu(stack)
        times.append(time.perf_counter() - started_s)
    assert times[0] >= DELAY_S > times[1]


def test_a_forked_process_is_refused(host: Stack) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            host.accelerator.synchronize()
        except RuntimeError as error:
            os._exit(7 if "forked subprocess" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
