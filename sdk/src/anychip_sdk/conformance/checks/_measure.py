"""Figures of this process and their trend over repetitions. Knows Linux's /proc; knows no device."""

from __future__ import annotations

import ctypes
import gc
import math
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

_SELF = Path("/proc/self")


class Trend(NamedTuple):
    """A slope per repetition, by Theil and Sen, with its confidence interval (95 %)."""

    slope: float
    low: float
    high: float


def theil_sen(values: Sequence[float]) -> Trend:
    """The median of all pairwise slopes; its interval from Kendall's statistic, after Sen (1968)."""
    count = len(values)
    slopes = sorted((values[j] - values[i]) / (j - i) for i in range(count) for j in range(i + 1, count))
    if not slopes:
        return Trend(0.0, 0.0, 0.0)
    spread = 1.96 * math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    low = int((len(slopes) - spread) / 2)
    high = int((len(slopes) + spread) / 2) + 1
    return Trend(_middle(slopes), slopes[max(0, low)], slopes[min(len(slopes) - 1, high)])


class _HeapInfo(ctypes.Structure):
    """What glibc's mallinfo2 returns: bytes in blocks of their own mapping, and in use in all arenas, among others."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in [
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        ]
    )


def heap_bytes() -> int | None:
    """Bytes that were allocated with malloc and not freed; resident bytes hide a leak behind free heap."""
    ask = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if ask is None:
        return None
    ask.restype = _HeapInfo
    info = ask()
    return int(info.uordblks) + int(info.hblkhd)


def process_figures() -> dict[str, float]:
    """Heap and resident bytes, open files and threads of this process; what the system doesn't tell is left out."""
    figures = {"threads": float(_threads())}
    if (heap := heap_bytes()) is not None:
        figures["heap_bytes"] = float(heap)
    if (_SELF / "statm").exists():
        figures["rss_bytes"] = float((_SELF / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    if (_SELF / "fd").exists():
        figures["fds"] = float(len(os.listdir(_SELF / "fd")))
    return figures


def _threads() -> int:
    task = _SELF / "task"
    return len(os.listdir(task)) if task.exists() else threading.active_count()


def repeat(
    cycle: Callable[[], None], count: int, figures: Callable[[], Mapping[str, float]], warm_up: int
) -> dict[str, list[float]]:
    """The figures after each of `count` cycles; the first `warm_up` ones, which fill caches, are not counted."""
    series: dict[str, list[float]] = {}
    for index in range(warm_up + count):
        cycle()
        if index < warm_up:
            continue
        gc.collect(0)
        for name, value in figures().items():
            series.setdefault(name, []).append(value)
    return series


def _middle(ordered: Sequence[float]) -> float:
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


__all__ = ["Trend", "heap_bytes", "process_figures", "repeat", "theil_sen"]
