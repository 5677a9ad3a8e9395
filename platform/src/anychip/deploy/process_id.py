"""Name a process so that a reused number doesn't mean another. Knows no service."""

from __future__ import annotations

from typing import Annotated

import msgspec


class ProcessId(msgspec.Struct, frozen=True):
    """A process for good: the start time tells a reused pid from the process that was meant."""

    pid: Annotated[int, msgspec.Meta(gt=0, lt=2**31)]
    started_at: float  #: seconds since the epoch, as the operating system tells it


__all__ = ["ProcessId"]
