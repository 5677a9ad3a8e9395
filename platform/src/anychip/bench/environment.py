"""Describe the machine and the versions that figures belong to. Knows files and package metadata; measures nothing."""

from __future__ import annotations

import os
import platform
import re
from importlib import metadata
from pathlib import Path

import psutil

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
CPUINFO = Path("/proc/cpuinfo")
#: What the figures depend on beside this project's own packages.
PACKAGES = ("torch", "httpx", "tokenizers")
OWN = "anychip"
VARIABLES = ("OMP_NUM_THREADS", "THP_MEM_ALLOC_ENABLE")


def environment() -> dict[str, object]:
    """Of the machine that the load comes from; a service on another machine tells its own share in /server_info."""
    return {
        "host": platform.node(),
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "cpu": _cpu(),
        "cores_physical": psutil.cpu_count(logical=False),
        "cores_logical": psutil.cpu_count(),
        "cores_allowed": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "memory_bytes": psutil.virtual_memory().total,
        "transparent_huge_pages": _huge_pages(),
        "load_average": list(os.getloadavg()),
        "python": platform.python_version(),
        "packages": _packages(),
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }


def _cpu() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", _text(CPUINFO), re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()


def _huge_pages() -> str | None:
    """The chosen one of `always [madvise] never`."""
    found = re.search(r"\[(\w+)\]", _text(HUGE_PAGES))
    return found[1] if found else None


def _packages() -> dict[str, str]:
    """Without importing them."""
    installed = {one.name.lower(): one.version for one in metadata.distributions() if one.name}
    names = [*PACKAGES, *sorted(name for name in installed if name.split("-")[0] == OWN)]
    return {name: installed[name] for name in names if name in installed}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""  # another system's


__all__ = ["environment"]
