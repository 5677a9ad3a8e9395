"""Python, packages, torch, memory and the folder for state. Knows metadata and files; knows no backend."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterable, Sequence
from importlib import import_module, metadata
from pathlib import Path

import psutil
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from anychip_sdk.finding import Finding
from anychip_sdk.home import home

OWN = ("anychip", "anychip-sdk")
STATE_BYTES_MIN = 1 << 30  #: logs and revisions need little; what is below this is nearly full


def host_findings() -> tuple[Finding, ...]:
    """What holds for every recipe on this machine."""
    return (python(), *packages(OWN), torch(), memory(), state_folder(home()))


def python(version: str | None = None) -> Finding:
    """The interpreter against what anychip's package requires."""
    found = version or platform.python_version()
    wanted = metadata.metadata("anychip")["Requires-Python"] or ""
    if SpecifierSet(wanted).contains(Version(found), prereleases=True):
        return Finding("python", "ok", found, expected=wanted)
    return Finding("python", "fail", found, expected=wanted, hint=f"install Python {wanted} and anychip into it")


def packages(distributions: Sequence[str]) -> tuple[Finding, ...]:
    """The installed versions against the ranges that these distributions require."""
    problems = []
    for distribution in distributions:
        for need in _requirements(distribution):
            present = _version(need.name)
            if present is None or not need.specifier.contains(Version(present), prereleases=True):
                what = f"{need.name} {present} is installed" if present else f"{need.name} is not installed"
                hint = f"pip install '{need.name}{need.specifier}'"
                expected = f"{need.specifier or 'any version'}, required by {distribution}"
                problems.append(Finding("packages", "fail", what, expected, hint))
    names = " and ".join(distributions)
    return tuple(problems) or (Finding("packages", "ok", f"all requirements of {names} are installed, in range"),)


def torch() -> Finding:
    """Whether torch can be imported at all."""
    try:
        found = import_module("torch")
    except Exception as error:  # a broken installation raises anything: OSError, ImportError, RuntimeError
        what = f"importing torch raises {type(error).__name__}: {error}"
        return Finding("torch", "fail", what, hint="install torch again; its build must fit this machine and Python")
    return Finding("torch", "ok", f"{found.__version__}, {found.get_num_threads()} threads")


def memory() -> Finding:
    """The machine's own memory, through which every checkpoint is read."""
    found = psutil.virtual_memory()
    return Finding("memory", "info", f"{_gib(found.available)} available of {_gib(found.total)}")


def state_folder(folder: Path) -> Finding:
    """Where services' state and logs are kept: writable, with room."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    hint = "set ANYCHIP_HOME to a folder of your own"
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        return Finding("state", "fail", f"{existing} is not a folder that can be written", f"{folder}", hint)
    free = shutil.disk_usage(existing).free
    what = f"{folder}, {_gib(free)} free"
    if free < STATE_BYTES_MIN:
        return Finding("state", "warn", what, f"at least {_gib(STATE_BYTES_MIN)} free", f"make room, or {hint}")
    return Finding("state", "ok", what)


def _requirements(distribution: str) -> Iterable[Requirement]:
    """What a distribution needs here, without its extras."""
    for text in metadata.distribution(distribution).requires or ():
        need = Requirement(text)
        if need.marker is None or need.marker.evaluate({"extra": ""}):
            yield need


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _gib(nbytes: float) -> str:
    return f"{nbytes / 2**30:.1f} GiB"


__all__ = ["OWN", "host_findings", "memory", "packages", "python", "state_folder", "torch"]
