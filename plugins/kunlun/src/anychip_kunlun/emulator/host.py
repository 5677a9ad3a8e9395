"""The virtual host: a folder with device nodes and what each process holds of a card. Knows files; knows no tensor."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from anychip_kunlun.emulator.profile import Profile

PREFIX = "anychip-kunlun-host-"


class Host:
    """The folder of a profile, filled. It goes when the last process that uses it ends.

    Args:
        profile: says what is in it, and where it is if it is shared.
    """

    def __init__(self, profile: Profile) -> None:
        self.root = profile.host if profile.host is not None else Path(tempfile.mkdtemp(prefix=PREFIX))
        self._pid = os.getpid()
        self._held: dict[int, int] = {}
        self._fill(profile)
        atexit.register(self.close)

    def close(self) -> None:
        """Leave; the last one out removes the folder."""
        atexit.unregister(self.close)
        if os.getpid() != self._pid:
            return
        self._guest(self._pid).unlink(missing_ok=True)
        if not any(self._is_alive(int(path.name)) for path in self._guests()):
            shutil.rmtree(self.root, ignore_errors=True)

    def publish(self, card: int, nbytes: int) -> None:
        """This process holds that many bytes of a card now."""
        self._held[card] = nbytes
        new = self._guest(self._pid).with_suffix(".new")
        new.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(" ".join(f"{index}:{held}" for index, held in self._held.items()))
        new.replace(self._guest(self._pid))

    def held_elsewhere(self, card: int) -> int:
        """What other living processes hold of a card."""
        return sum(_read(path).get(card, 0) for path in self._guests() if self._is_alive(int(path.name)))

    def _guests(self) -> list[Path]:
        """The files of the other processes."""
        folder = self._guest(self._pid).parent
        if not folder.is_dir():
            return []
        return [path for path in folder.iterdir() if path.name.isdigit() and path.name != str(self._pid)]

    def _guest(self, pid: int) -> Path:
        return self.root / "processes" / str(pid)

    def _is_alive(self, pid: int) -> bool:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            self._guest(pid).unlink(missing_ok=True)
            return False
        except PermissionError:
            return True
        return True

    def _fill(self, profile: Profile) -> None:
        dev, proc = self.root / "dev", self.root / "proc" / "kunlun"
        dev.mkdir(parents=True, exist_ok=True)
        self._guest(self._pid).parent.mkdir(exist_ok=True)
        self._guest(self._pid).touch()
        if profile.nodes == "none":
            return
        proc.mkdir(parents=True, exist_ok=True)
        (proc / "version").write_text(f"XPU driver version: {profile.driver}\n")
        for card in range(profile.cards):
            (dev / f"xpu{card}").touch()
        if profile.nodes == "all":
            (dev / "xpuctrl").touch()


def _read(path: Path) -> dict[int, int]:
    with suppress(FileNotFoundError):  # the process ended just now
        pairs = (pair.split(":") for pair in path.read_text().split())
        return {int(card): int(held) for card, held in pairs}
    return {}


__all__ = ["Host"]
