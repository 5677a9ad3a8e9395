"""Find the services' processes by their command lines, whatever state files say. Knows processes; reads no file.

A service's process leads its session and has `--revision HOME/services/NAME/revisions/N.json` on its command line.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from anychip.deploy.process_id import ProcessId

FLAG = "--revision"


class Running(NamedTuple):
    """One process of a service."""

    name: str
    revision: int
    id: ProcessId


def running_services(home: Path) -> Mapping[str, tuple[Running, ...]]:
    """The living processes of each service of a home, the one that was started first at the front."""
    folder = os.path.realpath(home / "services")
    found: dict[str, list[Running]] = {}
    for process in psutil.process_iter():
        one = _running(process, folder)
        if one is not None:
            found.setdefault(one.name, []).append(one)
    return {name: tuple(sorted(all_of, key=lambda one: one.id.started_at)) for name, all_of in found.items()}


def _running(process: psutil.Process, folder: str) -> Running | None:
    try:
        if os.getsid(process.pid) != process.pid:
            return None
        said = _revision(process.cmdline(), folder)
        if said is None or process.status() == psutil.STATUS_ZOMBIE:
            return None
        return Running(*said, ProcessId(process.pid, process.create_time()))
    except (psutil.Error, OSError):  # it ended meanwhile, or is another user's
        return None


def _revision(command: Sequence[str], folder: str) -> tuple[str, int] | None:
    """The service and the number of the revision that a command line names, if it is of this home."""
    if FLAG not in command[:-1]:
        return None
    path = Path(command[command.index(FLAG) + 1])
    service = path.parent.parent
    if path.parent.name != "revisions" or not path.stem.isdigit() or os.path.realpath(service.parent) != folder:
        return None
    return service.name, int(path.stem)


__all__ = ["FLAG", "Running", "running_services"]
