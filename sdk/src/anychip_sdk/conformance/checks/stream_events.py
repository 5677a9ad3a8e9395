"""The stream track: events, and what each kind of synchronize covers. Knows no kernel."""

from __future__ import annotations

import time

import torch

from anychip_sdk.conformance.checks._work import (
    DELAY_S,
    Buffers,
    delay_of,
    destroy,
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
from anychip_sdk.device import Event

NBYTES = 4096


@requirement(
    "AC-STREAM-002",
    level="MUST",
    text="An event MUST be done, and stay so, once it, its stream or its device was synchronised.",
)
def events_become_done(context: Context) -> None:
    device = context.device
    with Buffers(device) as buffers, streams(device, 1) as (stream,):
        source, target = buffers.alloc(NBYTES), buffers.alloc(NBYTES)
        for turn in range(context.scaled(5, 50)):
            for name in ("event", "stream", "device"):
                keep_busy(context, stream, DELAY_S / 20)
                device.copy(target, source, stream)
                event = stream.record()
                synchronize({"event": event, "stream": stream, "device": device}[name])  # type: ignore[arg-type]
                done = [event.query() for _ in range(3)]
                expect(all(done), f"turn {turn}: after the {name} was synchronised query() said {done}")
        empty = stream.record()
        expect(poll(empty.query), "the event of an idle stream is never done")


@requirement(
    "AC-STREAM-003",
    level="MUST",
    text="An event MUST NOT be done before the work recorded before it is, whether it is queried or waited for.",
    needs=("async_streams",),
    covers=("capability:async_streams",),
)
def events_are_not_early(context: Context) -> None:
    device, generator = context.device, context.generator()
    with Buffers(device) as buffers, streams(device, 2) as (stream, reader):
        for turn in range(context.scaled(6, 60)):
            sent, got = random_bytes(NBYTES, generator), torch.zeros(NBYTES, dtype=torch.uint8)
            source, target = buffers.put(sent), buffers.alloc(NBYTES)
            device.delay(stream, DELAY_S / 5)
            device.copy(target, source, stream)
            event = stream.record()
            if turn % 2:
                synchronize(event)
            else:
                expect(poll(event.query), f"turn {turn}: the event is never done")
            device.copy(got, target, reader)  # a stream of its own waits for nothing: it reads what is there now
            synchronize(device)
            expect(same_bits(got, sent), f"turn {turn}: the event was done before the copy in front of it")


@requirement(
    "AC-STREAM-008",
    level="MUST",
    text="Event.elapsed_s MUST be the time between two events: at least their work's, at most the host's.",
)
def elapsed_is_time(context: Context) -> None:
    device = context.device
    with streams(device, 1) as (stream,):
        for turn in range(context.scaled(3, 10)):
            started_s = time.perf_counter()
            first = stream.record()
            keep_busy(context, stream, DELAY_S)
            second = stream.record()
            third = stream.record()
            synchronize(stream)
            host_s = time.perf_counter() - started_s
            one, rest, whole = second.elapsed_s(first), third.elapsed_s(second), third.elapsed_s(first)
            least = 0.9 * DELAY_S if context.claims.holds("async_streams") else 0.0
            what = f"turn {turn}: between events around a delay of {DELAY_S} s"
            expect(one >= least, f"{what}: elapsed_s is {one:.4f}")
            expect(rest >= 0 and whole >= one, f"{what}: later events are {rest:.4f} and {whole:.4f} s after")
            expect(whole <= 1.1 * host_s + 0.001, f"{what}: elapsed_s is {whole:.4f}, the host saw {host_s:.4f} s")


@requirement(
    "AC-STREAM-009",
    level="MUST",
    text="Device.synchronize MUST wait for every stream of the device.",
)
def device_synchronize_covers_all(context: Context) -> None:
    device, generator = context.device, context.generator()
    with Buffers(device) as buffers, streams(device, 3) as sides:
        for turn in range(context.scaled(3, 30)):
            sent = [random_bytes(NBYTES, generator) for _ in sides]
            sources = [buffers.put(values) for values in sent]
            targets = [buffers.alloc(NBYTES) for _ in sides]
            for index, (stream, source, target) in enumerate(zip(sides, sources, targets, strict=True)):
                keep_busy(context, stream, delay_of(turn) * (1 + (turn + index) % 3))
                device.copy(target, source, stream)
            events = [stream.record() for stream in sides]
            synchronize(device)
            done = [event.query() for event in events]
            got = [target.cpu().clone() for target in targets]
            for stream in sides:
                synchronize(stream)
            expect(all(done), f"turn {turn}: after Device.synchronize the streams' events say {done}")
            right = all(same_bits(one, other) for one, other in zip(got, sent, strict=True))
            expect(right, f"turn {turn}: Device.synchronize returned before the copies of all streams were done")


@requirement(
    "AC-STREAM-010",
    level="MUST",
    text="Device.destroy_stream MUST wait for the work that is queued.",
)
def destroying_waits(context: Context) -> None:
    device, generator = context.device, context.generator()
    with Buffers(device) as buffers:
        for turn in range(context.scaled(3, 30)):
            sent, target = random_bytes(NBYTES, generator), buffers.alloc(NBYTES)
            source = buffers.put(sent)
            stream = device.create_stream()
            keep_busy(context, stream, delay_of(turn))
            device.copy(target, source, stream)
            event = stream.record()
            destroy(device, stream)
            expect(event.query(), f"turn {turn}: the stream was destroyed before its last event was done")
            expect(same_bits(download(device, target), sent), f"turn {turn}: a destroyed stream's copy was lost")


@requirement(
    "AC-STREAM-015",
    level="MUST",
    text="Stream.synchronize MUST wait for the work of its stream.",
    needs=("async_streams",),
    covers=("capability:async_streams",),
)
def stream_synchronize_waits(context: Context) -> None:
    device, generator = context.device, context.generator()
    with Buffers(device) as buffers, streams(device, 2) as (stream, reader):
        target = buffers.alloc(NBYTES)
        for turn in range(context.scaled(5, 50)):
            sent, got = random_bytes(NBYTES, generator), torch.zeros(NBYTES, dtype=torch.uint8)
            source = buffers.put(sent)
            device.delay(stream, DELAY_S / 5)
            device.copy(target, source, stream)
            event = stream.record()
            synchronize(stream)
            done = event.query()
            device.copy(got, target, reader)
            synchronize(event)
            expect(done and same_bits(got, sent), f"turn {turn}: the stream still had work when it was synchronised")


@requirement(
    "AC-STREAM-017",
    level="MUST",
    text="An event of Device.record MUST NOT be done before what ran without a stream is, whoever waits for it.",
)
def recorded_work_is_seen(context: Context) -> None:
    device, generator = context.device, context.generator()
    with Buffers(device) as buffers, streams(device, 1) as (reader,):
        values, shared = buffers.alloc(NBYTES).view(torch.int32), buffers.alloc(NBYTES).view(torch.int32)
        for turn in range(context.scaled(6, 60)):
            sent = torch.randint(-1000, 1000, (NBYTES // 4,), dtype=torch.int32, generator=generator)
            got = torch.zeros_like(sent)
            device.copy(values, sent)
            values.add_(turn)
            device.copy(shared, values)
            event = device.record()
            if turn % 2:
                synchronize(event)
                expect(event.query(), f"turn {turn}: query() says no after synchronize")
            else:
                reader.wait(event)
            device.copy(got, shared, reader)
            synchronize(device)
            who = "the host" if turn % 2 else "a stream"
            expect(torch.equal(got, sent + turn), f"turn {turn}: {who} waited for the event and read what was before")


@requirement(
    "AC-STREAM-018",
    level="MUST",
    text="Device.record MUST NOT wait for streams.",
    needs=("async_streams",),
    covers=("capability:async_streams",),
)
def recording_waits_for_no_stream(context: Context) -> None:
    device = context.device
    with streams(device, 1) as (stream,):

        def record() -> Event:
            device.record()
            return stream.record()

        reason = not_under_way(device, stream, record, "Device.record beside a busy stream")
    expect(reason is None, reason or "")


__all__ = [
    "destroying_waits",
    "device_synchronize_covers_all",
    "elapsed_is_time",
    "events_are_not_early",
    "events_become_done",
    "recorded_work_is_seen",
    "recording_waits_for_no_stream",
    "stream_synchronize_waits",
]
