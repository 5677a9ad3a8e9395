"""The stream track: asynchrony, order, waits, overlap. Knows copies and delays; knows no kernel."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch

from anychip_sdk.conformance.checks._work import (
    ATTEMPTS,
    DELAY_S,
    Buffers,
    delay_of,
    download,
    keep_busy,
    not_under_way,
    poll,
    random_bytes,
    same_bits,
    streams,
    synchronize,
)
from anychip_sdk.conformance.context import Context
from anychip_sdk.conformance.requirements import expect, requirement
from anychip_sdk.device import Device, Event, Stream

NBYTES = 4096


@requirement(
    "AC-STREAM-001",
    level="MUST",
    text="Work queued on a stream MUST run later: the call returns and its event is not done while the stream is busy.",
    needs=("async_streams",),
    covers=("capability:async_streams",),
)
def launches_are_asynchronous(context: Context) -> None:
    device = context.device
    with Buffers(device) as buffers, streams(device, 1) as (stream,):
        source, target = buffers.alloc(NBYTES), buffers.alloc(NBYTES)

        def launch() -> Event:
            device.copy(target, source, stream)
            return stream.record()

        reason = not_under_way(device, stream, launch, "a copy within the device")
    expect(reason is None, reason or "")


@requirement(
    "AC-STREAM-004",
    level="MUST",
    text="Work on one stream MUST run in the order in which it was queued.",
)
def a_stream_runs_in_order(context: Context) -> None:
    device, generator = context.device, context.generator()
    back = torch.zeros(NBYTES, dtype=torch.uint8)
    with Buffers(device) as buffers, streams(device, 1) as (stream,):
        first, second = buffers.alloc(NBYTES), buffers.alloc(NBYTES)
        old = buffers.put(random_bytes(NBYTES, generator))
        for turn in range(context.scaled(50, 500)):
            sent = random_bytes(NBYTES, generator)
            device.copy(first, old, stream)
            keep_busy(context, stream, 0.001)
            device.copy(first, sent, stream)
            device.copy(second, first, stream)
            device.copy(first, old, stream)
            device.copy(back, second, stream)
            synchronize(stream)
            expect(same_bits(back, sent), f"turn {turn}: five copies on one stream did not run in order", got=back)


@requirement(
    "AC-STREAM-005",
    level="MUST",
    text="Work queued behind Stream.wait MUST see everything that was queued before the event.",
)
def waiting_streams_see_the_work(context: Context) -> None:
    device, generator = context.device, context.generator()
    with Buffers(device) as buffers, streams(device, 2) as (producer, consumer):
        shared, target = buffers.alloc(NBYTES), buffers.alloc(NBYTES)
        for turn in range(context.scaled(10, 100)):
            sent = random_bytes(NBYTES, generator)
            source = buffers.put(sent)
            keep_busy(context, producer, delay_of(turn))
            device.copy(shared, source, producer)
            consumer.wait(producer.record())
            device.copy(target, shared, consumer)
            synchronize(consumer)
            got = download(device, target)
            expect(same_bits(got, sent), f"turn {turn}: the waiting stream read what was there before", got=got)


@requirement(
    "AC-STREAM-006",
    level="MUST",
    text="Stream.wait and Stream.record MUST NOT block the host.",
    needs=("async_streams",),
    covers=("capability:async_streams",),
)
def waiting_does_not_block_the_host(context: Context) -> None:
    device = context.device
    with streams(device, 2) as (producer, consumer):

        def wait() -> Event:
            event = producer.record()
            consumer.wait(event)
            return event

        reason = not_under_way(device, producer, wait, "Stream.wait")
    expect(reason is None, reason or "")


@requirement(
    "AC-STREAM-007",
    level="MUST",
    text="Streams that do not wait for each other MUST run at the same time.",
    needs=("async_streams", "concurrent_streams"),
    covers=("capability:async_streams",),
)
def streams_overlap(context: Context) -> None:
    sent = random_bytes(NBYTES, context.generator())
    with Buffers(context.device) as buffers, streams(context.device, 2) as (first, second):
        source = buffers.put(sent)
        for busy, idle in ((first, second), (second, first)):
            target = buffers.alloc(NBYTES)
            work = partial(_copy, context, target, source, idle)
            _pass_a_busy_stream(context.device, busy, idle, work)
            expect(same_bits(download(context.device, target), sent), "what was copied beside a busy stream is wrong")
        _delay_both(context.device, first, second)


def _copy(context: Context, target: torch.Tensor, source: torch.Tensor, stream: Stream) -> None:
    """Within the device and through the host."""
    device, host = context.device, torch.zeros(NBYTES, dtype=torch.uint8)
    device.copy(target, source, stream)
    device.copy(host, target, stream)
    device.copy(target, host, stream)


def _pass_a_busy_stream(device: Device, busy: Stream, idle: Stream, work: Callable[[], None]) -> None:
    """A short delay and `work` on an idle stream end before a long delay that was queued on another before them."""
    seconds = DELAY_S * 2
    for _ in range(ATTEMPTS):
        started_s = time.perf_counter()
        device.delay(busy, seconds)
        long = busy.record()
        device.delay(idle, seconds / 8)
        work()
        short = idle.record()
        expect(poll(short.query), "a short delay and copies on a stream of their own never end")
        overlapped = not long.query()
        taken_s = time.perf_counter() - started_s
        synchronize(device)
        if overlapped:
            return
        expect(taken_s > 0.9 * seconds, "a delay ended early")
        seconds *= 2
    expect(False, f"short work ended only after a long delay on another stream, in each of {ATTEMPTS} attempts")


def _delay_both(device: Device, *both: Stream) -> None:
    """Two delays take less time than one after the other would, whichever comes first."""
    seconds = DELAY_S * 2
    for _ in range(ATTEMPTS):
        started_s = time.perf_counter()
        for stream in both:
            device.delay(stream, seconds)
        synchronize(device)
        taken_s = time.perf_counter() - started_s
        expect(taken_s > 0.9 * seconds, "a delay ended early")
        if taken_s < 1.6 * seconds:
            return
        seconds *= 2
    expect(False, f"two delays on two streams took as long as one after the other, in each of {ATTEMPTS} attempts")


__all__ = [
    "a_stream_runs_in_order",
    "launches_are_asynchronous",
    "streams_overlap",
    "waiting_does_not_block_the_host",
    "waiting_streams_see_the_work",
]
