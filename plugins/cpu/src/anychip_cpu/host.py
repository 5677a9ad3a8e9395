"""What this machine offers a process: memory, cores, instruction sets. Knows Linux's files; knows no torch."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")
TOPOLOGY = Path("/sys/devices/system/cpu")
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")

#: the flags of /proc/cpuinfo worth showing, the strongest first
INSTRUCTION_SETS = ("amx_bf16", "amx_int8", "avx512_bf16", "avx512_fp16", "avx512f", "avx2", "asimd")


class Memory(NamedTuple):
    """Bytes that the process may use, and how many of them are free."""

    bytes_total: int
    bytes_free: int


def memory(proc: Path = PROC, cgroup: Path = CGROUP) -> Memory:
    """RAM, or the cgroup's limit where that is lower."""
    fields = _meminfo(proc / "meminfo")
    total = fields.get("MemTotal") or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    free = fields.get("MemAvailable", fields.get("MemFree", total))
    limited = _cgroup_memory(proc, cgroup)
    if limited is not None and limited.bytes_total < total:
        total, free = limited.bytes_total, min(free, limited.bytes_free)
    return Memory(total, max(0, min(free, total)))


def product(proc: Path = PROC) -> str:
    """The processor's name."""
    for line in _lines(proc / "cpuinfo"):
        key, _, value = line.partition(":")
        if key.strip() == "model name" and value.strip():
            return value.strip()
    return "CPU"


def instruction_sets(proc: Path = PROC) -> tuple[str, ...]:
    """Which of INSTRUCTION_SETS the processor has."""
    for line in _lines(proc / "cpuinfo"):
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            flags = set(value.split())
            return tuple(name for name in INSTRUCTION_SETS if name in flags)
    return ()


def huge_pages(path: Path = HUGE_PAGES) -> str:
    """The kernel's setting of transparent huge pages: always, madvise, never; empty where it has none."""
    return next((word.strip("[]") for word in _text(path).split() if word.startswith("[")), "")


def cores() -> int:
    """Physical cores in the process's affinity, at most the cgroup's quota; one thread on each is fastest."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    physical = {_core_of(cpu) for cpu in allowed}
    quota = _cpu_quota()
    count = len(physical) or 1
    return count if quota is None else max(1, min(count, math.ceil(quota)))


def _core_of(cpu: int) -> tuple[str, str]:
    folder = TOPOLOGY / f"cpu{cpu}" / "topology"
    package, core = _text(folder / "physical_package_id"), _text(folder / "core_id")
    return (package, core) if core else ("cpu", str(cpu))


def _cpu_quota() -> float | None:
    """CPUs' worth of time that the cgroup grants; None: no limit."""
    parts = _text(CGROUP / "cpu.max").split()
    if len(parts) != 2:
        parts = [_text(CGROUP / "cpu" / "cpu.cfs_quota_us"), _text(CGROUP / "cpu" / "cpu.cfs_period_us")]
    quota, period = (_number(part) for part in parts)
    return quota / period if quota and period and quota > 0 else None


def _meminfo(path: Path) -> dict[str, int]:
    """The file's fields in bytes."""
    fields = {}
    for line in _lines(path):
        name, _, rest = line.partition(":")
        value = _number(rest.split()[0]) if rest.split() else None
        if value is not None:
            fields[name] = value * 1024
    return fields


def _cgroup_memory(proc: Path, root: Path) -> Memory | None:
    """The tightest limit on the way from the process's cgroup to the root, for versions 2 and 1."""
    found: list[Memory] = []
    for line in _lines(proc / "self" / "cgroup"):
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers == "":
            base, names = root, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            base = root / "memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        own = base / path.strip("/")
        # inside a container the path may be the host's; then the root of the mount is the container's own group
        for folder in (own, *own.parents):
            limit = _number(_text(folder / names[0]))
            if limit is not None:
                used = (_number(_text(folder / names[1])) or 0) - _stat(folder, names[2])
                found.append(Memory(limit, max(0, limit - max(0, used))))
            if folder == base:
                break
    return min(found, default=None)


def _stat(folder: Path, field: str) -> int:
    """One field of memory.stat: file cache that the kernel gives back when asked."""
    for line in _lines(folder / "memory.stat"):
        name, _, value = line.partition(" ")
        if name == field:
            return _number(value) or 0
    return 0


def _number(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.lstrip("-").isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""  # the file is another kernel's or another cgroup version's: it sets no limit


def _lines(path: Path) -> list[str]:
    return _text(path).splitlines()


__all__ = ["INSTRUCTION_SETS", "Memory", "cores", "huge_pages", "instruction_sets", "memory", "product"]
