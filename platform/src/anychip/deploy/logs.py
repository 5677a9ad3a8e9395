"""Read a service's log: its last lines, and what is added. Knows files; knows nothing of what they say."""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

POLL_S = 0.2


def tail(path: Path, lines: int, since: int = 0) -> tuple[str, ...]:
    """The last lines from the byte `since` on; nothing where there is no log."""
    if not path.exists() or lines < 1:
        return ()
    with path.open("rb") as file:
        file.seek(since if since <= os.fstat(file.fileno()).st_size else 0)
        last = deque(file, maxlen=lines)
    return tuple(line.decode(errors="replace").rstrip("\n") for line in last)


def readable(line: str) -> str:
    """A structured line as a person reads it: level, event, then the rest; any other line as it is."""
    try:
        entry = json.loads(line)
    except ValueError:
        return line
    if not isinstance(entry, dict) or "event" not in entry:
        return line
    rest = [f"{key}: {value}" for key, value in entry.items() if key not in {"event", "level", "timestamp"}]
    return f"{entry.get('level', 'info')}: {entry['event']}" + (f" ({', '.join(rest)})" if rest else "")


def follow(path: Path, since: int, keep_on: Callable[[], bool], poll_s: float = POLL_S) -> Iterator[str]:
    """What is added after the byte `since`, piece by piece, through a rotation as well.

    Args:
        path: the log; it may come to be later.
        since: where to start, in bytes.
        keep_on: asked when nothing new is there; False ends it, after a last look.
        poll_s: how long to wait between looks.
    """
    position, inode = since, None
    is_last = False
    while True:
        if path.exists():
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                if (inode is not None and status.st_ino != inode) or status.st_size < position:
                    position = 0
                inode = status.st_ino
                file.seek(position)
                if added := file.read():
                    position += len(added)
                    yield added.decode(errors="replace")
                    continue
        if is_last:
            return
        is_last = not keep_on()
        if not is_last:
            time.sleep(poll_s)


__all__ = ["follow", "readable", "tail"]
