"""The last op that was queued, and the error that ended the device. Knows names and texts; knows no tensor.

An error of a kernel is raised at a later call that waits for the device, and the device can't be used after it: so
that call names what ran last, and every one behind it says the same.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import TypeVar

from anychip_sdk.errors import DeviceLost

T = TypeVar("T")

#: runtime and shim codes that a device does not survive -> what they mean
FATAL = {700: "illegal memory access", 714: "exception in a kernel", 715: "timeout", 718: "uncorrectable memory error"}
_CODES = re.compile("|".join(rf"\b{code}\b|{text}" for code, text in FATAL.items()), re.IGNORECASE)


class Trail:
    """One for all devices of a process, like the fault itself."""

    def __init__(self) -> None:
        self.last_op = "nothing"
        self._lost: str | None = None
        self._pid = os.getpid()

    def waiting(self, wait: Callable[[], T]) -> T:
        """Run what waits for the device.

        Raises:
            DeviceLost: a kernel failed since the last wait, or earlier.
        """
        self.check()
        try:
            return wait()
        except RuntimeError as error:
            if _CODES.search(str(error)) is None:
                raise
            self._lost = f"a kernel failed on the device: {error}; the last op queued was {self.last_op}"
            raise self._error() from error

    def check(self) -> None:
        """Raise DeviceLost if the device is lost, or was opened before this process was forked."""
        if self._lost is None and os.getpid() != self._pid:
            self._lost = f"the device was opened by process {self._pid}, which forked this one"
        if self._lost is not None:
            raise self._error()

    def _error(self) -> DeviceLost:
        return DeviceLost(f"backend 'kunlun': {self._lost}", hint="the process must be started again")


__all__ = ["FATAL", "Trail"]
