"""The memory track: nothing leaks, shown by the trend of what a process and a device hold. Knows no op."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from anychip_sdk.conformance.checks import _measure
from anychip_sdk.conformance.checks._work import (
    Buffers,
    destroy,
    download,
    error_of,
    finishes,
    synchronize,
)
from anychip_sdk.conformance.claims import Claims
from anychip_sdk.conformance.context import Context
from anychip_sdk.conformance.requirements import Case, Level, expect, requirement

MIB = 1 << 20


def _leak_cases(claims: Claims, level: Level) -> Iterable[Case]:
    for name in _CYCLES:
        yield Case(name, {"cycle": name})


@requirement(
    "AC-MEMORY-010",
    level="MUST",
    text="Using a device over and over MUST NOT leak device bytes, heap or resident bytes, descriptors or threads.",
    cases=_leak_cases,
    covers=("hook:anychip_open_device",),
)
def nothing_leaks(context: Context, case: Case) -> None:
    cycle, count = _CYCLES[case.params["cycle"]], context.scaled(40, 200)
    exact = context.claims.holds("exact_accounting")

    def figures() -> dict[str, float]:
        found = _measure.process_figures()
        if exact:
            memory = context.device.memory()
            found["device_bytes"] = float(memory.bytes_total - memory.bytes_free)
        return found

    series = _measure.repeat(lambda: cycle(context), count, figures, warm_up=max(10, count // 5))
    for name, values in series.items():
        trend = _measure.theil_sen(values)
        context.measured[f"{name}_per_cycle"] = trend.slope
        growth = trend.slope * (count - 1)
        leaks = trend.low > 0 and growth > _GROWTH_MAX[name]
        expect(
            not leaks,
            f"{count} times {case.id}: {name} grows by {trend.slope:.1f} each time "
            f"(95 % interval {trend.low:.1f} to {trend.high:.1f})",
            series=torch.tensor(values, dtype=torch.float64),
        )


#: what all cycles together may add, for allocators that settle late
_GROWTH_MAX = {"device_bytes": 0.0, "heap_bytes": 0.25 * MIB, "rss_bytes": 4.0 * MIB, "fds": 1.0, "threads": 1.0}


def _cycle_alloc(context: Context) -> None:
    with Buffers(context.device) as buffers:
        for nbytes in (1, 4096, 65536):
            buffers.alloc(nbytes).fill_(1)
    synchronize(context.device)


def _cycle_copy(context: Context) -> None:
    with Buffers(context.device) as buffers:
        for _ in range(8):
            download(context.device, buffers.put(torch.zeros(4096, dtype=torch.uint8)))


def _cycle_stream(context: Context) -> None:
    stream = context.device.create_stream()
    for _ in range(16):
        event = stream.record()
    finishes("Event.synchronize", event.synchronize)
    destroy(context.device, stream)


def _cycle_refusal(context: Context) -> None:
    error_of(lambda: context.device.alloc(context.device.memory().bytes_total + 1))


def _cycle_open(context: Context) -> None:
    device = finishes("opening the device", context.open_device)
    with Buffers(device) as buffers:
        buffers.alloc(4096)
    finishes("Device.close", device.close)


_CYCLES: dict[str, Callable[[Context], None]] = {
    "alloc": _cycle_alloc,
    "copy": _cycle_copy,
    "stream": _cycle_stream,
    "refusal": _cycle_refusal,
    "open": _cycle_open,
}

__all__ = ["nothing_leaks"]
