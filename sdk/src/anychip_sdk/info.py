"""What a backend says of itself, static. Knows no hook and no device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Requirements:
    """Version ranges (PEP 440 specifiers); empty: any."""

    torch: str = ""
    driver: str = ""
    runtime: str = ""


@dataclass(frozen=True)
class BackendInfo:
    """The static face of a backend."""

    name: str
    vendor: str
    api: str  #: the API versions that it was written for, e.g. ">=1.0,<2"
    requirements: Requirements = field(default_factory=Requirements)
    claims: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(
        default_factory=dict
    )  #: the worker starts with these, where the user set none
    absence: str = ""  #: what a probe that found no device says: why, and what to install
    on_every_machine: bool = False  #: its device is the host itself: `auto` takes it only where no other is


__all__ = ["BackendInfo", "Requirements"]
