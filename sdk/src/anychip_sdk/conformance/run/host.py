"""What a result must say of the machine that it was made on. Knows versions; decides nothing."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def host_facts() -> Mapping[str, str]:
    """Operating system, processor, interpreter and the versions of what takes part."""
    facts = {
        "os": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": str(os.cpu_count() or 1),
        "python": platform.python_version(),
    }
    for name in ("torch", "anychip-sdk", "anychip"):
        try:
            facts[name] = version(name)
        except PackageNotFoundError:
            facts[name] = "not installed"
    return facts


def now() -> str:
    """UTC, ISO 8601, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def command() -> str:
    """How the suite is called here."""
    try:
        version("anychip")
    except PackageNotFoundError:
        return "python -m anychip_sdk.conformance"
    return "platform conformance"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith(("model name", "Model")):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


__all__ = ["command", "host_facts", "now"]
