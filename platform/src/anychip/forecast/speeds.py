"""The speeds that this machine has of its devices: kept when measured, found again for plans. Measures nothing.

$ANYCHIP_HOME/speeds/BACKEND-DEVICE.json     figures, and of what: they count for just that
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from anychip_sdk.backend import Backend
from anychip_sdk.device import DeviceInfo
from anychip_sdk.errors import IntegrityFailed
from anychip_sdk.home import home
from anychip_sdk.installed import installed_digest
from anychip_sdk.speeds import KernelSpeed, Speeds

SCHEMA_VERSION = 2


class Known(NamedTuple):
    """Speeds to reckon with, or why there are none.

    Attributes:
        speeds: those while memory is slow, which one may count on.
        reason: why there are none.
        faster: those measured at times when memory was faster.
    """

    speeds: Speeds | None
    reason: str = ""
    faster: Sequence[Speeds] = ()

    @property
    def all(self) -> list[Speeds]:
        return [] if self.speeds is None else [self.speeds, *self.faster]


def known_of(measured: Sequence[Speeds]) -> Known:
    """What was measured while memory was so fast and so fast."""
    slowest, *faster = sorted(measured, key=lambda speeds: speeds.memory_bytes_per_s or 0.0)
    return Known(slowest, faster=tuple(faster))


@dataclass(frozen=True)
class Subject:
    """What speeds are of: a device under a backend.

    Attributes:
        threads: host threads that kernels run on; None: the backend's choice.
        library: the path of the shared object, where the backend is one.
    """

    backend: Backend
    device: DeviceInfo
    threads: int | None = None
    library: str | None = None

    @property
    def path(self) -> Path:
        name = re.sub(r"[^\w.-]", "-", f"{self.backend.name}-{self.device.name}")
        return home() / "speeds" / f"{name}.json"

    @property
    def command(self) -> str:
        return f"platform devices --measure {self.library or self.backend.name}"

    def facts(self) -> dict[str, str]:
        """All that the figures depend on, as far as it is known."""
        backend, device = self.backend, self.device
        return {
            "backend": f"{backend.distribution} {backend.version}, files {self._digest()[:12]}",
            "device": device.product,
            "threads": "the backend's choice" if self.threads is None else str(self.threads),
            **device.versions,
            **device.attributes,
        }

    def _digest(self) -> str:
        if self.library is not None:
            return hashlib.sha256(Path(self.library).read_bytes()).hexdigest()
        return installed_digest(self.backend.distribution, self.backend.name) or "unknown"


def keep(measured: Sequence[Speeds], subject: Subject) -> Path:
    """Write down what was measured, in place of what was before while memory was as fast."""
    path = subject.path
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    speeds = [asdict(one) for one in (*measured, *_at_other_times(measured, subject))]
    text = json.dumps({"schema_version": SCHEMA_VERSION, "of": subject.facts(), "speeds": speeds}, indent=1)
    part = path.with_suffix(".part")
    part.write_text(text + "\n", encoding="utf-8")
    part.replace(path)
    return path


def _at_other_times(measured: Sequence[Speeds], subject: Subject) -> list[Speeds]:
    """Of what is kept already: as it was while memory was not as fast as it was now."""
    with suppress(IntegrityFailed):  # what is damaged is written anew
        kept = _measured(subject).all
        return [one for one in kept if not any(now.hold_at(one.memory_bytes_per_s) for now in measured)]
    return []


def find_speeds(subject: Subject) -> Known:
    """What was measured of just this device and backend, else its data sheet's, else the reason why there is none.

    Raises:
        IntegrityFailed: what was kept can't be read.
    """
    if subject.backend.emulated:
        return Known(None, "an emulator's speed says nothing of the device's")
    measured = _measured(subject)
    if measured.speeds is None and subject.device.speeds is not None:
        return Known(subject.device.speeds)
    return measured


def _measured(subject: Subject) -> Known:
    path, command, name = subject.path, subject.command, subject.device.name
    if not path.exists():
        return Known(None, f"{name} was never measured on this machine: {command}")
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["schema_version"] != SCHEMA_VERSION:
            return Known(None, f"{path} is another anychip's: {command}")
        differences = _differences(kept["of"], subject.facts())
        if differences:
            return Known(None, f"{name} was measured when {differences}: {command}")
        return known_of([_speeds(one) for one in kept["speeds"]])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        message = f"{path} is damaged: {error}"
        raise IntegrityFailed(message, hint=command) from error


def _speeds(kept: dict[str, Any]) -> Speeds:
    kernels = {name: KernelSpeed(**one) for name, one in kept.pop("kernels").items()}
    return Speeds(**{**kept, "kernels": kernels, "compiled_ops": tuple(kept["compiled_ops"])})


def _differences(kept: Mapping[str, str], now: Mapping[str, str]) -> str:
    names = [name for name in {**kept, **now} if kept.get(name) != now.get(name)]
    return ", ".join(f"{name} was {kept.get(name, 'not known')}, not {now.get(name, 'known')}" for name in names)


__all__ = ["Known", "Subject", "find_speeds", "keep", "known_of"]
