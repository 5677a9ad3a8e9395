"""The device track: finding, opening and closing devices, side effects of loading, processes. Knows no vendor."""

from __future__ import annotations

import dataclasses
import threading

import torch

from anychip_sdk.conformance.checks._child import Child, ask
from anychip_sdk.conformance.checks._tasks import RIGHT, TYPED, identity
from anychip_sdk.conformance.checks._work import (
    Buffers,
    download,
    error_of,
    expect_none,
    finishes,
    poll,
    random_bytes,
    same_bits,
    streams,
    synchronize,
    told_by_thread,
)
from anychip_sdk.conformance.context import Context
from anychip_sdk.conformance.requirements import Violation, expect, requirement
from anychip_sdk.conformance.run.target import without_emulator
from anychip_sdk.device import Device, DeviceInfo
from anychip_sdk.errors import DeviceAbsent

MIB = 1 << 20
FORK_S = 20.0


@requirement(
    "AC-DEVICE-001",
    level="MUST",
    text="anychip_probe MUST find the same devices each time it is called, in every process.",
    covers=("hook:anychip_probe",),
)
def probe_is_stable(context: Context) -> None:
    first = [identity(device) for device in context.backend.probe()]
    expect(bool(first), "the probe finds no device, though one is under test")
    for turn in range(context.scaled(20, 100)):
        again = [identity(device) for device in context.backend.probe()]
        expect(again == first, f"probe {turn + 2} found {again}, the first one {first}")
    answer = ask(context, "describe")
    context.measured["probe_s"] = float(answer["seconds"])
    expect(answer["devices"] == first, f"another process finds {answer['devices']}, this one {first}")


@requirement(
    "AC-DEVICE-002",
    level="MUST",
    text="anychip_probe MUST NOT raise where a driver's environment is missing; it then finds no device.",
    covers=("hook:anychip_probe",),
)
def probe_never_raises(context: Context) -> None:
    ask(context, "describe", bare=True)


@requirement(
    "AC-DEVICE-003",
    level="MUST",
    text="An opened device MUST be what the probe said: capabilities, versions, capacity and name; others are refused.",
    covers=("hook:anychip_open_device", "capability:dtypes"),
)
def opened_is_what_was_probed(context: Context) -> None:
    device, info = context.device, context.info
    expect(
        device.capabilities == info.capabilities,
        f"opened with {device.capabilities}, probed with {info.capabilities}",
    )
    expect(device.capabilities == device.capabilities, "capabilities differ from call to call")
    versions = dict(device.versions())
    expect(versions == dict(info.versions), f"opened with versions {versions}, probed with {dict(info.versions)}")
    total = device.memory().bytes_total
    expect(total == info.memory_bytes_total, f"{total} bytes in all when opened, {info.memory_bytes_total} when probed")
    where = device.resolve(info.name)
    expect(where == device.torch_device, f"resolve({info.name!r}) is {where}, torch_device is {device.torch_device}")
    for name in (f"{context.backend.name}:4096", "no-such-chip:0"):
        error = error_of(lambda name=name: device.resolve(name))  # type: ignore[misc]
        expect(isinstance(error, DeviceAbsent), f"resolve({name!r}) must raise DeviceAbsent; it gave {error!r}")


@requirement(
    "AC-DEVICE-004",
    level="MUST",
    text="A device MUST be usable after it was closed and opened again, and closing it twice MUST do nothing more.",
    covers=("hook:anychip_open_device",),
)
def reopening_works(context: Context) -> None:
    generator = context.generator()
    for turn in range(context.scaled(3, 20)):
        device = finishes("opening the device", context.open_device)
        sent = random_bytes(4096, generator)
        with Buffers(device) as buffers:
            back = download(device, buffers.put(sent))
        finishes("Device.close", device.close)
        error = error_of(device.close)
        expect(error is None, f"closing the device a second time raised {error!r}")
        expect(same_bits(back, sent), f"data came back wrong from the device opened for the {turn + 2}. time")


@requirement(
    "AC-DEVICE-005",
    level="MUST",
    text="Loading a backend MUST NOT replace a callable of builtins, torch or anychip, nor change global settings.",
    covers=("hook:anychip_backend", "hook:anychip_register_ops", "hook:anychip_fusions"),
)
def loading_patches_nothing(context: Context) -> None:
    answer = ask(_unemulated(context), "purity")
    replaced, state = answer["replaced"], answer["state"]
    expect(not replaced, f"loading replaced {len(replaced)} callables: {', '.join(replaced[:10])}")
    expect(not state, f"loading changed {', '.join(state)}")


@requirement(
    "AC-DEVICE-006",
    level="MUST",
    text="Loading a backend MUST NOT start threads: nothing runs before a device is opened.",
    covers=("hook:anychip_backend",),
)
def loading_starts_no_thread(context: Context) -> None:
    answer = ask(_unemulated(context), "purity")
    expect(answer["threads"] <= 0, f"loading started {answer['threads']} threads")


@requirement(
    "AC-DEVICE-007",
    level="MUST",
    text="A device used in a forked process MUST work or raise an AnychipError; it MUST NOT hang.",
    covers=("hook:anychip_open_device",),
)
def fork_never_hangs(context: Context) -> None:
    answer = ask(context, "fork", hang_s=FORK_S)
    code, told = answer["code"], answer["told"]
    expect(code is not None, f"a forked process that used the device hung: killed after {FORK_S:g} s")
    expect(
        code in (RIGHT, TYPED),
        f"a forked process that used the device ended with code {code}: a wrong result, an error that is no "
        f"AnychipError, or (negative) a signal{told and f'; it said {told}'}",
    )


@requirement(
    "AC-DEVICE-008",
    level="MUST",
    text="What a process holds of a device MUST be free again, for all others, when that process was killed.",
    needs=("exact_accounting",),
    covers=("hook:anychip_open_device",),
)
def killed_process_frees_memory(context: Context) -> None:
    nbytes = context.scaled(64, 256) * MIB
    before = context.device.memory().bytes_free
    with Child(context, "hold", nbytes=nbytes) as child:
        child.answer()
        child.kill()
        came_back = poll(lambda: context.device.memory().bytes_free >= before, seconds=10)
    free = context.device.memory().bytes_free
    expect(
        came_back, f"10 s after a process that held {nbytes} bytes was killed {free} bytes are free, before {before}"
    )


def second_device(context: Context) -> DeviceInfo:
    """Another device of the backend."""
    others = [info for info in context.backend.probe() if info.name != context.info.name]
    if not others:
        message = "multi_device is claimed, but only one device is present"
        raise Violation(message)
    return others[0]


@requirement(
    "AC-DEVICE-009",
    level="MUST",
    text="What is allocated on one device MUST NOT be counted on another.",
    needs=("multi_device", "exact_accounting"),
    covers=("hook:anychip_open_device",),
)
def devices_count_apart(context: Context) -> None:
    other = context.backend.open(second_device(context), context.config)
    try:
        before = other.memory().bytes_free
        with Buffers(context.device) as buffers:
            buffers.alloc(8 * MIB)
            during = other.memory().bytes_free
        expect(
            during == before, f"8 MiB on {context.info.name} changed the other device's free bytes {before} -> {during}"
        )
    finally:
        other.close()


@requirement(
    "AC-DEVICE-010",
    level="MUST",
    text="A buffer or stream of another device MUST be refused or served right, and MUST NOT be damaged.",
    needs=("multi_device",),
    covers=("hook:anychip_open_device",),
)
def foreign_objects_are_safe(context: Context) -> None:
    device = context.device
    other = context.backend.open(second_device(context), context.config)
    sent = random_bytes(8192, context.generator())
    try:
        with Buffers(other) as theirs, Buffers(device) as ours, streams(other, 1) as (foreign,):
            buffer = theirs.alloc(sent.numel())
            other.copy(buffer, sent)
            synchronize(other)
            error_of(lambda: device.free(buffer))
            expect(same_bits(download(other, buffer), sent), "freeing another device's buffer destroyed it")
            again = theirs.alloc(sent.numel())
            expect(again.data_ptr() != buffer.data_ptr(), "freeing another device's buffer gave its memory away")
            target = ours.alloc(sent.numel())
            refused = error_of(lambda: device.copy(target, sent, foreign))
            if refused is None:
                synchronize(device)
                synchronize(other)
                expect(same_bits(download(device, target), sent), "a copy on another device's stream was lost")
    finally:
        other.close()


@requirement(
    "AC-DEVICE-011",
    level="MUST",
    text="Threads that work with different devices at the same time MUST NOT disturb each other.",
    needs=("multi_device",),
    covers=("hook:anychip_open_device",),
)
def threads_have_their_own_device(context: Context) -> None:
    other = context.backend.open(second_device(context), context.config)
    devices = (context.device, other)
    problems: list[Violation] = []
    sources = [random_bytes(1024, context.generator(str(index))) for index in range(2)]
    workers = [
        threading.Thread(target=_churn, args=(device, source, context.scaled(40, 200), problems))
        for device, source in zip(devices, sources, strict=True)
    ]
    try:
        for worker in workers:
            worker.start()
        for worker in workers:
            finishes("a thread with its own device", worker.join)
    finally:
        other.close()
    expect_none(problems)


def _unemulated(context: Context) -> Context:
    """For what is asked of the package itself: an emulator may put its own modules in the place of the vendor's."""
    return dataclasses.replace(context, load=without_emulator(context.load))


def _churn(device: Device, source: torch.Tensor, turns: int, problems: list[Violation]) -> None:
    try:
        for turn in range(turns):
            buffer = device.alloc(source.numel())
            device.copy(buffer, source)
            back = download(device, buffer)
            device.free(buffer)
            if not same_bits(back, source):
                problems.append(Violation(f"turn {turn}: data came back wrong"))
    except Exception as error:  # it is reported by the thread that started this one
        problems.append(told_by_thread(error))


__all__ = [
    "devices_count_apart",
    "foreign_objects_are_safe",
    "fork_never_hangs",
    "killed_process_frees_memory",
    "loading_patches_nothing",
    "loading_starts_no_thread",
    "opened_is_what_was_probed",
    "probe_is_stable",
    "probe_never_raises",
    "reopening_works",
    "second_device",
    "threads_have_their_own_device",
]
