"""The copy track: bits, offsets, strides, overlaps, what may change when, lifetimes. Knows no kernel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from anychip_sdk.conformance.checks._work import (
    DELAY_S,
    Buffers,
    download,
    error_of,
    random_bytes,
    same_bits,
    streams,
    synchronize,
)
from anychip_sdk.conformance.claims import Claims
from anychip_sdk.conformance.context import Context
from anychip_sdk.conformance.requirements import LEVELS, Case, Level, expect, requirement

SIZES = (0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 257, 1000, 4095, 4096, 4097)
INTEGERS = ("uint8", "int8", "int16", "int32", "int64", "bool")
NBYTES = 16384


def dtype_cases(claims: Claims, level: Level) -> Iterable[Case]:
    """Every dtype that is claimed, and those of ids and masks."""
    for name in dict.fromkeys((*claims.dtypes, *INTEGERS)):
        yield Case(name, {"dtype": name})


def random_values(count: int, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Random bits of a dtype, NaN and infinities among them."""
    if dtype == torch.bool:
        return random_bytes(count, generator) > 127
    return random_bytes(count * dtype.itemsize, generator).view(dtype)


@requirement(
    "AC-COPY-001",
    level="MUST",
    text="Copies from the host, within the device and back MUST keep every bit, for every size and dtype.",
    cases=dtype_cases,
    covers=("capability:dtypes",),
)
def contiguous_copies_are_exact(context: Context, case: Case) -> None:
    device, dtype = context.device, getattr(torch, case.params["dtype"])
    generator = context.generator()
    large = (1 << 18, 1 << 20, 64 << 20, 64 << 20)[LEVELS.index(context.level)] // dtype.itemsize + 1
    sizes = SIZES if context.level == "smoke" else (*range(0, 4098, 1 if dtype.itemsize == 1 else 7), *SIZES)
    with Buffers(device) as buffers:
        first, second = (buffers.alloc(large * dtype.itemsize).view(dtype) for _ in range(2))
        for count in (*sizes, large):
            sent = random_values(count, dtype, generator)
            device.copy(first[:count], sent)
            device.copy(second[:count], first[:count])
            back = download(device, second[:count])
            expect(same_bits(back, sent), f"{count} values of {dtype} came back changed", inputs=sent, got=back)


@requirement(
    "AC-COPY-002",
    level="MUST",
    text="Copies from and to any offset MUST be exact and MUST NOT touch the bytes next to their target.",
)
def offsets_are_exact(context: Context) -> None:
    device, generator = context.device, context.generator()
    for count in (1, 3, 16, 17, 33, 129) if context.level == "smoke" else SIZES[1:]:
        for at in (0, 1, 2, 3, 5, 7, 8, 13):
            sent, old = random_bytes(count + 16, generator), random_bytes(count + 64, generator)
            wanted = old.clone()
            wanted[at + 17 : at + 17 + count] = sent[at : at + count]
            with Buffers(device) as buffers:
                source, target = buffers.put(sent), buffers.put(old)
                device.copy(target[at + 17 : at + 17 + count], source[at : at + count])
                got = download(device, target)
                device.copy(target, old)
                device.copy(target[at + 17 : at + 17 + count], sent[at : at + count])
                from_host = download(device, target)
                part = download(device, source[at : at + count])
            where = f"{count} bytes from offset {at} to {at + 17}"
            expect(same_bits(got, wanted), f"{where}: within the device: wrong bytes", expected=wanted, got=got)
            expect(same_bits(from_host, wanted), f"{where}: from the host: wrong bytes", expected=wanted, got=from_host)
            expect(same_bits(part, sent[at : at + count]), f"{where}: to the host: wrong bytes")


def _views() -> Iterator[tuple[str, tuple[int, ...], list[int]]]:
    """Name, shape and strides (in elements) of views into 4096 elements."""
    yield "rows of a wider matrix", (17, 5), [64, 1]
    yield "a transposed matrix", (33, 31), [1, 64]
    yield "every third element", (129,), [3]
    yield "a permuted cube", (7, 9, 5), [5, 35, 1]


@requirement(
    "AC-COPY-003",
    level="MUST",
    text="Copies between views of any strides MUST be exact, MUST leave the gaps alone, or MUST raise.",
)
def strides_are_honoured(context: Context) -> None:
    device, generator = context.device, context.generator()
    for name, shape, strides in _views():
        for dtype in (torch.float32, torch.uint8):
            host, old = random_values(4096, dtype, generator), random_values(4096, dtype, generator)
            dense = random_values(torch.Size(shape).numel(), dtype, generator).view(shape)
            with Buffers(device) as buffers:
                source, target = buffers.put(host), buffers.put(old)
                pairs = (
                    ("from", target.as_strided(shape, dense.stride()), source.as_strided(shape, strides)),
                    ("to", target.as_strided(shape, strides), source.as_strided(shape, dense.stride())),
                    ("from and to", target.as_strided(shape, strides), source.as_strided(shape, strides)),
                )
                for way, to, frm in pairs:
                    device.copy(target, old)
                    wanted = old.clone()
                    wanted.as_strided(shape, to.stride()).copy_(host.as_strided(shape, frm.stride()))
                    if error_of(lambda to=to, frm=frm: device.copy(to, frm)) is not None:  # type: ignore[misc]
                        continue
                    got = download(device, target)
                    expect(same_bits(got, wanted), f"a copy {way} {name} ({dtype}) is wrong", expected=wanted, got=got)


@requirement(
    "AC-COPY-004",
    level="MUST",
    text="A copy between views that overlap MUST give what a copy through a third buffer gives, or MUST raise.",
)
def overlaps_are_not_silent(context: Context) -> None:
    device, generator = context.device, context.generator()
    for count, shift in ((1000, 1), (1000, 8), (4096, 64), (4096, 4000), (100_000, 8)):
        old = random_bytes(count, generator)
        for forward in (True, False):
            with Buffers(device) as buffers:
                buffer = buffers.put(old)
                to, frm = (buffer[shift:], buffer[:-shift]) if forward else (buffer[:-shift], buffer[shift:])
                if error_of(lambda to=to, frm=frm: _copy_and_wait(context, to, frm)) is not None:  # type: ignore[misc]
                    continue
                got = download(device, buffer)
            wanted = torch.cat((old[:shift], old[:-shift]) if forward else (old[shift:], old[-shift:]))
            expect(same_bits(got, wanted), f"a copy of {count} bytes onto itself, {shift} bytes further, is wrong")


def _copy_and_wait(context: Context, to: torch.Tensor, frm: torch.Tensor) -> None:
    context.device.copy(to, frm)
    synchronize(context.device)


@requirement(
    "AC-COPY-005",
    level="MUST",
    text="Copies and computation that name no stream MUST run in the order in which they were called.",
)
def no_stream_means_in_order(context: Context) -> None:
    device, generator = context.device, context.generator()
    with Buffers(device) as buffers:
        values = buffers.alloc(4 * NBYTES).view(torch.int32)
        other = buffers.alloc(4 * NBYTES).view(torch.int32)
        for turn in range(context.scaled(30, 300)):
            sent = torch.randint(-1000, 1000, (NBYTES,), dtype=torch.int32, generator=generator)
            device.copy(values, sent)
            values.add_(turn)
            device.copy(other, values)
            other.mul_(3)
            back = torch.empty_like(sent)
            device.copy(back, other)
            synchronize(device)
            expect(torch.equal(back, (sent + turn) * 3), f"turn {turn}: upload, add, copy, multiply, download is wrong")


@requirement(
    "AC-COPY-006",
    level="MUST",
    text="A host tensor MUST NOT be read after a queued copy from it has returned.",
    needs=("async_streams",),
    covers=("capability:async_streams",),
)
def host_source_may_change(context: Context) -> None:
    device, generator = context.device, context.generator()
    with Buffers(device) as buffers, streams(device, 1) as (stream,):
        target = buffers.alloc(NBYTES)
        for turn in range(context.scaled(5, 50)):
            source = random_bytes(NBYTES, generator)
            wanted = source.clone()
            device.delay(stream, DELAY_S / 5)
            device.copy(target, source, stream)
            source.fill_(0)
            synchronize(stream)
            expect(same_bits(download(device, target), wanted), f"turn {turn}: the source was read too late")


@requirement(
    "AC-COPY-012",
    level="MUST",
    text="A host tensor MUST NOT be read after a copy from it that names no stream has returned.",
)
def host_source_may_change_without_a_stream(context: Context) -> None:
    device, generator = context.device, context.generator()
    with Buffers(device) as buffers:
        targets = [buffers.alloc(NBYTES) for _ in range(8)]
        for turn in range(context.scaled(5, 50)):
            sent = [random_bytes(NBYTES, generator) for _ in targets]
            for target, wanted in zip(targets, sent, strict=True):
                source = wanted.clone()
                device.copy(target, source)
                source.fill_(0)
            got = [download(device, target) for target in targets]
            right = all(same_bits(one, other) for one, other in zip(got, sent, strict=True))
            expect(right, f"turn {turn}: the source of one of {len(targets)} copies was read too late")


@requirement(
    "AC-COPY-007",
    level="MUST",
    text="A host tensor MUST be complete when a queued copy to it has returned.",
    needs=("async_streams",),
    covers=("capability:async_streams",),
)
def host_target_is_complete(context: Context) -> None:
    device, generator = context.device, context.generator()
    with Buffers(device) as buffers, streams(device, 1) as (stream,):
        for turn in range(context.scaled(5, 50)):
            sent = random_bytes(NBYTES, generator)
            source, target = buffers.put(sent), torch.zeros(NBYTES, dtype=torch.uint8)
            device.delay(stream, DELAY_S / 5)
            device.copy(target, source, stream)
            expect(same_bits(target, sent), f"turn {turn}: the copy returned before its target was complete")


@requirement(
    "AC-COPY-010",
    level="MUST",
    text="Memory that queued work writes to MUST NOT be handed out again before that work is done.",
    needs=("async_streams",),
    covers=("capability:async_streams",),
)
def freed_target_is_not_reused(context: Context) -> None:
    device, generator = context.device, context.generator()
    for turn in range(context.scaled(3, 30)):
        late, new = random_bytes(NBYTES, generator), random_bytes(NBYTES, generator)
        with Buffers(device) as buffers, streams(device, 1) as (stream,):
            old = buffers.alloc(NBYTES)
            source = buffers.put(late)
            device.delay(stream, DELAY_S / 2)
            device.copy(old, source, stream)
            buffers.free(old)
            del old
            fresh = buffers.put_now(new)
            synchronize(stream)
            got = download(device, fresh)
        expect(same_bits(got, new), f"turn {turn}: a late copy to a freed buffer overwrote a new one")


@requirement(
    "AC-COPY-011",
    level="MUST",
    text="Memory that queued work reads from MUST keep its content until that work is done, freed or not.",
    needs=("async_streams",),
    covers=("capability:async_streams",),
)
def freed_source_keeps_its_content(context: Context) -> None:
    device, generator = context.device, context.generator()
    for turn in range(context.scaled(3, 30)):
        wanted, new = random_bytes(NBYTES, generator), random_bytes(NBYTES, generator)
        with Buffers(device) as buffers, streams(device, 1) as (stream,):
            source, target = buffers.put(wanted), buffers.alloc(NBYTES)
            device.delay(stream, DELAY_S / 2)
            device.copy(target, source, stream)
            buffers.free(source)
            del source
            buffers.put_now(new)
            synchronize(stream)
            got = download(device, target)
        expect(same_bits(got, wanted), f"turn {turn}: a queued copy read a freed buffer's new content")


__all__ = [
    "contiguous_copies_are_exact",
    "dtype_cases",
    "freed_source_keeps_its_content",
    "freed_target_is_not_reused",
    "host_source_may_change",
    "host_source_may_change_without_a_stream",
    "host_target_is_complete",
    "no_stream_means_in_order",
    "offsets_are_exact",
    "overlaps_are_not_silent",
    "random_values",
    "strides_are_honoured",
]
