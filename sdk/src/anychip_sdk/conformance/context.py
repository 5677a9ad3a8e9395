"""What a check works with: the loaded backend, an opened device, the claims, a seed. Knows no requirement."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from anychip_sdk.backend import Backend
from anychip_sdk.conformance.claims import Claims
from anychip_sdk.conformance.requirements import LEVELS, Level
from anychip_sdk.device import Device, DeviceConfig, DeviceInfo


@dataclass
class Context:
    """One check's surroundings.

    Attributes:
        backend: loaded anew in the group's process.
        info: the device under test, as probed.
        config: what devices are opened with.
        device: opened and initialised; checks that close a device open their own with `open_device`.
        claims: what the vendor's package claims.
        level: how much: shapes and iterations only, never bounds.
        seed: derived from the case's id.
        load: loads the backend again from scratch, here or in another process: it can be pickled.
        scratch: an empty folder.
        measured: figures for the report, e.g. {"headroom": 0.02, "slope_bytes_per_cycle": 0.0}.
    """

    backend: Backend
    info: DeviceInfo
    config: DeviceConfig
    device: Device
    claims: Claims
    level: Level
    seed: int
    load: Callable[[], Backend]
    scratch: Path
    measured: dict[str, float] = field(default_factory=dict)
    fallbacks: set[str] = field(default_factory=set)  #: ops of this check that the reference served

    def scaled(self, smoke: int, std: int, deep: int | None = None, soak: int | None = None) -> int:
        """How many of something at this level."""
        deep = deep if deep is not None else 4 * std
        return (smoke, std, deep, soak if soak is not None else 10 * deep)[LEVELS.index(self.level)]

    def generator(self, salt: str = "") -> torch.Generator:
        """Random numbers on the host that depend on the case alone."""
        return torch.Generator().manual_seed(derived_seed(f"{self.seed}/{salt}"))

    def open_device(self) -> Device:
        """A further opened device of the same kind; the caller closes it."""
        return self.backend.open(self.info, self.config)


def derived_seed(text: str) -> int:
    """A seed that is the same everywhere for the same text."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


__all__ = ["Context", "derived_seed"]
