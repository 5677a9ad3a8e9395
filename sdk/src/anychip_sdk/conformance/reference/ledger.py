"""What each process holds of a reference chip, in files, so that processes see each other's use. Knows no buffer."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


class Ledger:
    """One file per process: its name is the process's id, its text the bytes held. Files of dead processes go.

    Args:
        folder: shared by the processes; None: this process is alone.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._written: tuple[int, int] | None = None

    def write(self, nbytes: int) -> None:
        """This process holds that many bytes now."""
        if self._folder is None or self._written == (os.getpid(), nbytes):
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        own = self._folder / str(os.getpid())
        new = own.with_suffix(".new")
        new.write_text(str(nbytes))
        new.replace(own)
        self._written = (os.getpid(), nbytes)

    def bytes_elsewhere(self) -> int:
        """What other living processes hold."""
        if self._folder is None or not self._folder.is_dir():
            return 0
        return sum(self._held(path) for path in self._folder.iterdir() if path.name.isdigit())

    def _held(self, path: Path) -> int:
        if path.name == str(os.getpid()):
            return 0
        if not self._is_alive(int(path.name)):
            path.unlink(missing_ok=True)
            return 0
        with suppress(FileNotFoundError):  # it ended just now
            return int(path.read_text())
        return 0

    def _is_alive(self, pid: int) -> bool:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True


__all__ = ["Ledger"]
