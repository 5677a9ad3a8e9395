"""The stream track: threads, late errors, many streams. Knows no kernel."""

from __future__ import annotations

import random
import threading
import time
from itertools import pairwise

import torch

from anychip_sdk.conformance.checks._work import (
    ATTEMPTS,
    DELAY_S,
    Buffers,
    destroy,
    download,
    error_of,
    expect_none,
    finishes,
    random_bytes,
    same_bits,
    streams,
    synchronize,
    told_by_thread,
)
from anychip_sdk.conformance.context import Context
from anychip_sdk.conformance.requirements import Violation, expect, requirement
from anychip_sdk.device import Device, Stream

NBYTES = 4096


@requirement(
    "AC-STREAM-011",
    level="MUST",
    text="Threads that use streams and buffers of their own MUST get the results that one thread gets.",
)
def threads_do_not_mix(context: Context) -> None:
    turns, problems = context.scaled(40, 250), list[Violation]()
    threads = [
        threading.Thread(target=_work_alone, args=(context.device, context.seed + index, turns, problems))
        for index in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        finishes("a thread with a stream of its own", thread.join, 60)
    expect_none(problems, f"{len(problems)} of 8 threads got wrong results: ")


def _work_alone(device: Device, seed: int, turns: int, problems: list[Violation]) -> None:
    """Random copies between buffers, mirrored on the host and compared at the end."""
    choose, generator = random.Random(seed), torch.Generator().manual_seed(seed % (1 << 62))
    mirror = [torch.zeros(512, dtype=torch.uint8) for _ in range(4)]
    stream = device.create_stream()
    buffers = [device.alloc(512) for _ in mirror]
    zeros = torch.zeros(512, dtype=torch.uint8)
    try:
        for buffer in buffers:  # that new memory is zeroed is another requirement's business
            device.copy(buffer, zeros, stream)
        for _ in range(turns):
            to, frm, at = choose.randrange(4), choose.randrange(4), choose.randrange(256)
            if choose.random() < 0.5:
                sent = random_bytes(256, generator)
                device.copy(buffers[to][at : at + 256], sent, stream)
                mirror[to][at : at + 256] = sent
            elif to != frm:
                device.copy(buffers[to], buffers[frm], stream)
                mirror[to].copy_(mirror[frm])
        stream.synchronize()
        got = [torch.zeros(512, dtype=torch.uint8) for _ in mirror]
        for host, buffer in zip(got, buffers, strict=True):
            device.copy(host, buffer, stream)
        stream.synchronize()
        if not all(same_bits(one, other) for one, other in zip(got, mirror, strict=True)):
            problems.append(Violation("buffers differ from what was copied into them"))
    except Exception as error:  # it is reported by the thread that started this one
        problems.append(told_by_thread(error))
    finally:
        device.destroy_stream(stream)
        for buffer in buffers:
            device.free(buffer)


@requirement(
    "AC-STREAM-012",
    level="MUST",
    text="A thread that waits for a device MUST NOT keep other Python threads from running.",
    needs=("async_streams",),
    covers=("capability:async_streams",),
)
def waiting_lets_threads_run(context: Context) -> None:
    device = context.device
    with streams(device, 1) as (stream,):
        for waits in (device, stream):
            share, seconds = 1.0, DELAY_S
            for _ in range(ATTEMPTS):
                share = _longest_silence(device, stream, waits, seconds)
                if share < 0.33:
                    break
                seconds *= 2
            what = f"{type(waits).__name__}.synchronize waited for a delay of up to {seconds} s"
            expect(
                share < 0.33, f"{what}; another thread could not run for {share:.0%} of the time, whatever the delay"
            )


def _longest_silence(device: Device, stream: Stream, waits: Device | Stream, seconds: float) -> float:
    """The longest time for which another thread did not run while this one waited, as a share of the wait."""
    looks: list[float] = []
    waiting, stop = threading.Event(), threading.Event()

    def watch() -> None:
        waiting.wait()
        while not stop.is_set():
            looks.append(time.perf_counter())
            stop.wait(0.001)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    device.delay(stream, seconds)
    waiting.set()
    started_s = time.perf_counter()
    synchronize(waits)
    ended_s = time.perf_counter()
    stop.set()
    watcher.join()
    times = [started_s, *(look for look in looks if started_s < look < ended_s), ended_s]
    return max(later - earlier for earlier, later in pairwise(times)) / (ended_s - started_s)


@requirement(
    "AC-STREAM-013",
    level="MUST",
    text="Queued work that can't be done MUST raise at the call or at the next synchronize, which names the operation.",
    covers=("hook:anychip_open_device",),
)
def late_errors_are_raised(context: Context) -> None:
    device = context.device
    with Buffers(device) as buffers:
        source, target = buffers.alloc(NBYTES), buffers.alloc(NBYTES // 2)
        for waits in ("device", "stream"):
            stream = device.create_stream()
            at_once = error_of(lambda stream=stream: device.copy(target, source, stream))  # type: ignore[misc]
            late = error_of(lambda stream=stream, waits=waits: synchronize(device if waits == "device" else stream))  # type: ignore[misc]
            error_of(lambda stream=stream: destroy(device, stream))  # type: ignore[misc]
            what = f"a copy of {NBYTES} bytes to a buffer of {NBYTES // 2}, then {waits}.synchronize"
            expect(at_once is not None or late is not None, f"{what}: nothing was raised")
            named = at_once is not None or "copy" in str(late)
            expect(named, f"{what}: the error does not name the operation: {late}")


@requirement(
    "AC-STREAM-014",
    level="MUST",
    text="After an error of queued work a device MUST work again, or MUST raise for everything: never a wrong result.",
    covers=("hook:anychip_open_device",),
)
def errors_leave_no_wrong_results(context: Context) -> None:
    device, sent = context.device, random_bytes(NBYTES, context.generator())
    with Buffers(device) as buffers, streams(device, 1) as (stream,):
        source, target, small = buffers.put(sent), buffers.alloc(NBYTES), buffers.alloc(NBYTES // 2)
        error_of(lambda: device.copy(small, source, stream))
        error_of(lambda: synchronize(device))
        got = torch.zeros_like(sent)

        def again() -> None:
            device.copy(target, source, stream)
            device.copy(got, target, stream)
            synchronize(stream)

        error = error_of(again)
        expect(
            error is not None or same_bits(got, sent), "after an error a copy on the same stream gave a wrong result"
        )


@requirement(
    "AC-STREAM-016",
    level="MUST",
    text="Many streams, of any priority, MUST be usable at the same time.",
)
def many_streams_work(context: Context) -> None:
    device, generator = context.device, context.generator()
    sent = random_bytes(NBYTES, generator)
    made = [device.create_stream(priority) for priority in (-1, 0, 1) for _ in range(context.scaled(8, 32))]
    with Buffers(device) as buffers:
        source, targets = buffers.put(sent), [buffers.alloc(NBYTES) for _ in made]
        for stream, target in zip(made, targets, strict=True):
            device.copy(target, source, stream)
        for stream in made:
            destroy(device, stream)
        for index, target in enumerate(targets):
            expect(same_bits(download(device, target), sent), f"the copy on stream {index} of {len(made)} is wrong")


__all__ = [
    "errors_leave_no_wrong_results",
    "late_errors_are_raised",
    "many_streams_work",
    "threads_do_not_mix",
    "waiting_lets_threads_run",
]
