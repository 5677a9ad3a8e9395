"""The variables that a backend's process starts with. Knows mappings; starts nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping


def worker_environment(named: Mapping[str, str], own: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a process that serves, measures or tests a backend starts with: what the user set, and what it names.

    Args:
        named: the backend's `BackendInfo.environment`.
        own: what the user set; None: this process's variables.
    """
    return {**named, **(os.environ if own is None else own)}


def missing_variables(named: Mapping[str, str], own: Mapping[str, str] | None = None) -> dict[str, str]:
    """Those that the backend names and nobody has set: a process that lacks some must be started anew with them."""
    have = os.environ if own is None else own
    return {name: value for name, value in named.items() if name not in have}


__all__ = ["missing_variables", "worker_environment"]
