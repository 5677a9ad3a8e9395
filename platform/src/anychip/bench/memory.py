"""How much memory a service's processes took. Knows Linux's files; knows no service."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

import psutil

PROC = Path("/proc")
_LOCAL = {"127.0.0.1", "::1", "localhost"}


def peak_rss_bytes(pid: int | None, proc: Path = PROC) -> int | None:
    """The resident memory of a process and its children at their peaks, summed; shared pages count for each.

    None where the process is gone, or the system doesn't tell.
    """
    if pid is None:
        return None
    try:
        family = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    except psutil.NoSuchProcess:
        return None
    peaks = [_peak(proc / str(member) / "status") for member in family]
    found = [peak for peak in peaks if peak is not None]
    return sum(found) if found else None


def listener(url: str) -> int | None:
    """The process that listens where a URL of this machine leads; None where that is nobody this user may see."""
    parts = urlsplit(url)
    if parts.hostname not in _LOCAL or parts.port is None:
        return None
    try:
        connections = psutil.net_connections("tcp")
    except psutil.AccessDenied:
        return None
    for one in connections:
        if one.status == psutil.CONN_LISTEN and one.laddr and one.laddr.port == parts.port:
            return int(one.pid) if one.pid is not None else None
    return None


def _peak(status: Path) -> int | None:
    try:
        found = re.search(r"^VmHWM:\s+(\d+) kB", status.read_text(), re.MULTILINE)
    except OSError:
        return None  # it ended meanwhile
    return int(found[1]) * 1024 if found else None


__all__ = ["listener", "peak_rss_bytes"]
