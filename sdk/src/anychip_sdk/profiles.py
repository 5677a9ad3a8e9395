"""The conformance profiles, each of which contains those before it. Knows their names, not what they ask for."""

from __future__ import annotations

from typing import Literal

Profile = Literal["bringup", "kernel", "serving-core", "serving-full"]
PROFILES: tuple[Profile, ...] = ("bringup", "kernel", "serving-core", "serving-full")

__all__ = ["PROFILES", "Profile"]
