"""The memory track: accounting, alignment, content, exhaustion, other processes. Knows no op's meaning."""

from __future__ import annotations

import random
import re

import torch

from anychip_sdk.conformance.checks._child import Child
from anychip_sdk.conformance.checks._kernels import own_kernels, run_on
from anychip_sdk.conformance.checks._work import (
    Buffers,
    download,
    error_of,
    poll,
    random_bytes,
    same_bits,
    synchronize,
)
from anychip_sdk.conformance.context import Context
from anychip_sdk.conformance.requirements import expect, requirement
from anychip_sdk.device import Device
from anychip_sdk.errors import MemoryInsufficient

MIB = 1 << 20
SIZES = (1, 3, 63, 64, 65, 4095, 4096, 4097, MIB + 1)
POISON = 0xFF  #: NaN in every floating dtype, -1 in every integer one


@requirement(
    "AC-MEMORY-001",
    level="MUST",
    text="Device.memory MUST report a constant total and between 0 and that many free bytes, at any time.",
    covers=("hook:anychip_open_device",),
)
def memory_stays_in_range(context: Context) -> None:
    device = context.device
    total = device.memory().bytes_total
    expect(total > 0, f"bytes_total is {total}")
    for nbytes in (0, *SIZES, context.scaled(8, 128) * MIB):
        with Buffers(device) as buffers:
            _checked(device, total)
            buffers.alloc(nbytes).fill_(1)
            synchronize(device)
            _checked(device, total)
        _checked(device, total)


def _checked(device: Device, total: int) -> int:
    memory = device.memory()
    expect(memory.bytes_total == total, f"bytes_total changed from {total} to {memory.bytes_total}")
    expect(0 <= memory.bytes_free <= total, f"{memory.bytes_free} of {total} bytes are said to be free")
    return memory.bytes_free


@requirement(
    "AC-MEMORY-002",
    level="MUST",
    text="An allocation MUST be counted with its own size, rounded up to the claimed granularity, until it is freed.",
    needs=("exact_accounting",),
    covers=("hook:anychip_open_device",),
)
def accounting_is_exact(context: Context) -> None:
    device = context.device
    granularity = context.claims.limits.get("allocation_granularity_bytes", 2 * MIB)
    for nbytes in (*SIZES, context.scaled(32, 128) * MIB):
        before = device.memory().bytes_free
        buffer = device.alloc(nbytes)
        taken = before - device.memory().bytes_free
        device.free(buffer)
        del buffer
        synchronize(device)
        after = device.memory().bytes_free
        # a device that cuts small buffers from large granules takes a new one only now and then
        least = nbytes if granularity <= 4096 or nbytes >= granularity else 0
        most = -(-nbytes // granularity) * granularity
        expect(least <= taken <= most, f"alloc({nbytes}) lowered free bytes by {taken}, expected {least} to {most}")
        expect(after == before, f"{before} bytes were free before alloc({nbytes}) and free, {after} after")


@requirement(
    "AC-MEMORY-003",
    level="MUST",
    text="Device.alloc MUST return uint8 memory on the device, of the size asked for, at the alignment asked for.",
    covers=("hook:anychip_open_device",),
)
def buffers_are_aligned(context: Context) -> None:
    device = context.device
    most = context.claims.limits.get("alignment_bytes", 64)
    for alignment in (1 << power for power in range(max(1, most.bit_length()))):
        with Buffers(device) as buffers:
            for nbytes in (0, *SIZES):
                buffer = buffers.alloc(nbytes, alignment)
                what = f"alloc({nbytes}, alignment={alignment})"
                expect(buffer.dtype == torch.uint8, f"{what} is {buffer.dtype}, must be uint8")
                expect(tuple(buffer.shape) == (nbytes,), f"{what} has shape {tuple(buffer.shape)}")
                expect(buffer.device.type == device.torch_device.type, f"{what} is on {buffer.device}")
                expect(nbytes == 0 or buffer.data_ptr() % alignment == 0, f"{what} is at {buffer.data_ptr():#x}")


@requirement(
    "AC-MEMORY-004",
    level="MUST",
    text="Memory of Device.alloc MUST hold zeros, also where it was used before.",
    covers=("hook:anychip_open_device",),
)
def buffers_are_zeroed(context: Context) -> None:
    device = context.device
    for turn in range(context.scaled(2, 10)):
        for nbytes in SIZES:
            with Buffers(device) as buffers:
                host = download(device, buffers.alloc(nbytes))
                expect(not host.any(), f"turn {turn}: alloc({nbytes}) returned memory that is not zero")
                device.copy(buffers.alloc(nbytes), torch.full((nbytes,), POISON, dtype=torch.uint8))
                synchronize(device)


@requirement(
    "AC-MEMORY-005",
    level="MUST",
    text="Buffers that are alive at the same time MUST NOT share a byte, however many were allocated and freed before.",
    covers=("hook:anychip_open_device",),
)
def buffers_do_not_overlap(context: Context) -> None:
    device = context.device
    choose = random.Random(context.seed)
    live: list[tuple[torch.Tensor, int]] = []
    with Buffers(device) as buffers:
        for turn in range(context.scaled(300, 2000)):
            if live and choose.random() < 0.4:
                buffer, mark = live.pop(choose.randrange(len(live)))
                _expect_mark(device, buffer, mark)
                buffers.free(buffer)
                del buffer
            else:
                buffer = buffers.alloc(choose.choice((1, 5, 64, 200, 513, 1000, 4097)))
                mark = turn % 251 + 1
                device.copy(buffer, torch.full(buffer.shape, mark, dtype=torch.uint8))
                live.append((buffer, mark))
        synchronize(device)
        for buffer, mark in live:
            _expect_mark(device, buffer, mark)


def _expect_mark(device: Device, buffer: torch.Tensor, mark: int) -> None:
    host = download(device, buffer)
    wrong = int((host != mark).sum())
    expect(wrong == 0, f"{wrong} of {buffer.numel()} bytes of a live buffer were overwritten through another", got=host)


@requirement(
    "AC-MEMORY-006",
    level="MUST",
    text="What does not fit MUST raise MemoryInsufficient with the bytes wanted and free; the device MUST stay usable.",
    covers=("hook:anychip_open_device",),
)
def exhaustion_is_typed(context: Context) -> None:
    device = context.device
    exact = context.claims.holds("exact_accounting")
    before = device.memory()
    wanted = before.bytes_total + 1
    for turn in range(context.scaled(20, 100)):
        error = error_of(lambda: device.alloc(wanted))
        expect(
            isinstance(error, MemoryInsufficient),
            f"turn {turn}: alloc({wanted}) of {before.bytes_total} must raise MemoryInsufficient; it gave {error!r}",
        )
        numbers = re.findall(r"\d+", str(error).replace(",", ""))
        expect(str(wanted) in numbers, f"the error does not say that {wanted} bytes were wanted: {error}")
        expect(len(set(numbers)) > 1, f"the error does not say how many bytes are free: {error}")
    if exact:
        error = error_of(lambda: device.alloc(before.bytes_free + 1))
        expect(isinstance(error, MemoryInsufficient), f"one byte more than is free must be refused; it gave {error!r}")
        free = device.memory().bytes_free
        expect(free == before.bytes_free, f"{before.bytes_free} bytes were free before the refusals, {free} after")
    sent = random_bytes(4096, context.generator())
    with Buffers(device) as buffers:
        expect(same_bits(download(device, buffers.put(sent)), sent), "a buffer made after a refusal holds wrong data")


@requirement(
    "AC-MEMORY-007",
    level="MUST",
    text="Freeing a buffer twice MUST raise ValueError or do nothing, and MUST NOT give its memory to two.",
    covers=("hook:anychip_open_device",),
)
def double_free_is_harmless(context: Context) -> None:
    device = context.device
    before, error = _free_twice(device)
    expect(error is None or isinstance(error, ValueError), f"freeing a buffer twice raised {error!r}, not ValueError")
    with Buffers(device) as buffers:
        one, two = buffers.alloc(4096), buffers.alloc(4096)
        device.copy(one, torch.full((4096,), 1, dtype=torch.uint8))
        device.copy(two, torch.full((4096,), 2, dtype=torch.uint8))
        synchronize(device)
        expect(one.data_ptr() != two.data_ptr(), "after a double free two buffers have the same address")
        expect(bool((download(device, one) == 1).all()), "after a double free two buffers share memory")
        if context.claims.holds("exact_accounting"):
            free = device.memory().bytes_free
            expect(free < before, f"after a double free {free} bytes are free with two buffers, {before} with one")


def _free_twice(device: Device) -> tuple[int, Exception | None]:
    """Bytes free with one buffer, and what its second free raised."""
    buffer = device.alloc(4096)
    before = device.memory().bytes_free
    device.free(buffer)
    return before, error_of(lambda: device.free(buffer))


@requirement(
    "AC-MEMORY-008",
    level="MUST",
    text="A kernel's results MUST NOT depend on what free memory holds.",
    covers=("hook:anychip_register_ops",),
)
def free_memory_has_no_say(context: Context) -> None:
    for kernel, args in own_kernels(context):
        first = run_on(context.device, kernel, args)
        for fill in (POISON, 0x3C):
            _fill_free_memory(context.device, [(one.nbytes, one.dtype) for one in first], fill)
            again = run_on(context.device, kernel, args)
            for index, (one, other) in enumerate(zip(first, again, strict=True)):
                same = same_bits(one, other) if context.claims.holds("deterministic") else _alike(one, other)
                what = f"{kernel.op} ({kernel.name}): result {index}"
                expect(same, f"{what} changes with the content of free memory", expected=one, got=other)


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.isfinite(), other.isfinite())


def _fill_free_memory(device: Device, wanted: list[tuple[int, torch.dtype]], fill: int) -> None:
    """Fill and drop memory of those sizes, which allocators like to hand out next."""
    made = [
        torch.full((nbytes + more,), fill, dtype=torch.uint8, device=device.torch_device)
        for nbytes, _ in wanted
        for more in (0, 0, 0, 64)
    ]
    synchronize(device)
    made.clear()


@requirement(
    "AC-MEMORY-009",
    level="MUST",
    text="What another process holds of a device MUST NOT be reported as free, and two processes MUST fit.",
    needs=("exact_accounting",),
    covers=("hook:anychip_open_device",),
)
def processes_see_each_other(context: Context) -> None:
    device = context.device
    free = device.memory().bytes_free
    # 45 % each where the level allows so much
    nbytes = min(int(0.45 * free), context.scaled(64, 256, 4096, 1 << 20) * MIB)
    with Child(context, "hold", nbytes=nbytes) as child:
        child.answer()
        seen = poll(lambda: device.memory().bytes_free <= free - nbytes, seconds=5)
        now = device.memory().bytes_free
        expect(seen, f"another process holds {nbytes} bytes, yet {now} are said to be free ({free} before)")
        buffer = device.alloc(nbytes)
        buffer.fill_(1)
        synchronize(device)
        device.free(buffer)


__all__ = [
    "accounting_is_exact",
    "buffers_are_aligned",
    "buffers_are_zeroed",
    "buffers_do_not_overlap",
    "double_free_is_harmless",
    "exhaustion_is_typed",
    "free_memory_has_no_say",
    "memory_stays_in_range",
    "processes_see_each_other",
]
