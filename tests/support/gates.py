"""Stop a process at a known point and let it go on: files in a folder. Knows no service.

A process that comes to a closed gate says so and waits until the gate is opened; an open gate is passed at once.
"""

import contextlib
import threading
from pathlib import Path

from support.waiting import until

LIMIT_S = 200.0  #: on a very busy machine


class Gates:
    """The gates of one folder, for all the processes that know it."""

    def __init__(self, folder):
        self.folder = Path(folder)

    def close(self, name):
        (self.folder / f"{name}.closed").touch()

    def open(self, name):
        with contextlib.suppress(FileNotFoundError):
            (self.folder / f"{name}.closed").unlink()

    def open_all(self):
        for path in self.folder.glob("*.closed"):
            self.open(path.stem)

    def wait_reached(self, name, process=None):
        """Until somebody waits at the gate; fails at once where the process that should has ended."""
        reached = self.folder / f"{name}.reached"
        until(lambda: reached.exists() or (process is not None and process.poll() is not None), LIMIT_S)
        assert reached.exists(), f"nobody came to {name}"

    def pass_through(self, name):
        """For the process that the gate stops."""
        closed = self.folder / f"{name}.closed"
        if closed.exists():
            (self.folder / f"{name}.reached").touch()
            while closed.exists():
                threading.Event().wait(0.01)
