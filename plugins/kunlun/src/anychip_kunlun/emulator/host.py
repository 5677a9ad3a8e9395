"""The virtual host: a folder with device nodes and what each process holds of a card. Knows files; knows no tensor."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from anychip_kunlun.emulator.profile import Profile

PREFIX = "anychip-kunlun-host-"

_serial = itertools.count()


class Host:
    """The folder of a profile, filled. It goes when the last guest leaves: a machine in some process.

    Args:
        profile: says what is in it, and where it is if it is shared.
        announce: called with the folder before this guest holds memory for the first time.
    """

    def __init__(self, profile: Profile, announce: Callable[[Path], None] | None = None) -> None:
        self.root = profile.host if profile.host is not None else _new_folder()
        self._announce = announce
        self._pid = os.getpid()
        self._name = f"{self._pid}-{next(_serial)}"
        self._held: dict[int, int] = {}
        self._has_left = False
        self._fill(profile)

    def leave(self) -> None:
        """Hold nothing any more; the last one out removes the folder."""
        if os.getpid() != self._pid:
            return
        self._has_left = True
        self._guest(self._name).unlink(missing_ok=True)
        if not self._others():
            shutil.rmtree(self.root, ignore_errors=True)

    def publish(self, card: int, nbytes: int) -> None:
        """This guest holds that many bytes of a card now; of no interest to others once it has left."""
        if self._has_left:
            return
        if self._announce is not None:
            self._announce(self.root)
            self._announce = None
        self._held[card] = nbytes
        guest = self._guest(self._name)
        guest.parent.mkdir(parents=True, exist_ok=True)
        new = guest.with_suffix(".new")
        new.write_text(" ".join(f"{index}:{held}" for index, held in self._held.items()))
        new.replace(guest)

    def held_elsewhere(self, card: int) -> int:
        """What other living processes hold of a card."""
        return sum(_read(path).get(card, 0) for path in self._others() if _pid(path) != self._pid)

    def _others(self) -> list[Path]:
        """The files of the other guests; those of dead processes go."""
        return [path for path in _guests(self.root) if path.name != self._name and _is_alive(path)]

    def _guest(self, name: str) -> Path:
        return self.root / "guests" / name

    def _fill(self, profile: Profile) -> None:
        dev, proc = self.root / "dev", self.root / "proc" / "kunlun"
        dev.mkdir(parents=True, exist_ok=True)
        self._guest(self._name).parent.mkdir(exist_ok=True)
        self._guest(self._name).touch()
        if profile.nodes == "none":
            return
        proc.mkdir(parents=True, exist_ok=True)
        (proc / "version").write_text(f"XPU driver version: {profile.driver}\n")
        for card in range(profile.cards):
            (dev / f"xpu{card}").touch()
        if profile.nodes == "all":
            (dev / "xpuctrl").touch()


def _new_folder() -> Path:
    """A folder of its own; those whose guests were all killed go."""
    for old in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        guests = _guests(old)
        if guests and not any(map(_is_alive, guests)):
            shutil.rmtree(old, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=PREFIX))


def _guests(root: Path) -> list[Path]:
    folder = root / "guests"
    if not folder.is_dir():
        return []
    return [path for path in folder.iterdir() if path.suffix == ""]


def _pid(guest: Path) -> int:
    return int(guest.name.partition("-")[0])


def _is_alive(guest: Path) -> bool:
    try:
        os.kill(_pid(guest), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _read(path: Path) -> dict[int, int]:
    with suppress(FileNotFoundError):  # the guest left just now
        pairs = (pair.split(":") for pair in path.read_text().split())
        return {int(card): int(held) for card, held in pairs}
    return {}


__all__ = ["PREFIX", "Host"]
