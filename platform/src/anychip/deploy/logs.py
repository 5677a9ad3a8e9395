"""Read a service's log: its last lines, and what is added. Knows files; knows nothing of what they say."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

POLL_S = 0.2


def tail(path: Path, lines: int, since: int = 0) -> tuple[str, ...]:
    """The last lines from the byte `since` on, older logs included where that is 0; nothing where there is no log."""
    last: list[bytes] = []
    for file in _newest_first(path):
        if len(last) >= lines:
            break
        content = file.read_bytes()
        start = since if since <= len(content) else 0
        last = content[start:].splitlines()[len(last) - lines :] + last
        if start:
            break
    return tuple(line.decode(errors="replace") for line in last)


def readable(line: str) -> str:
    """A structured line as a person reads it: level, event, then the rest; any other line as it is."""
    try:
        entry = json.loads(line)
    except ValueError:
        return line
    if not isinstance(entry, dict) or "event" not in entry:
        return line
    if entry.get("source") == "output":  # printed by something that knows nothing of logs
        return str(entry["event"])
    rest = [f"{key}: {value}" for key, value in entry.items() if key not in {"event", "level", "timestamp"}]
    return f"{entry.get('level', 'info')}: {entry['event']}" + (f" ({', '.join(rest)})" if rest else "")


def follow(path: Path, since: int, keep_on: Callable[[], bool], poll_s: float = POLL_S) -> Iterator[str]:
    """What is added after the byte `since`, piece by piece, through rotations as well.

    Args:
        path: the log; it may come to be later.
        since: where to start, in bytes.
        keep_on: asked when nothing new is there; False ends it, after a last look.
        poll_s: how long to wait between looks.
    """
    file: BinaryIO | None = None
    is_last = False
    try:
        while True:
            if file is None and path.exists():
                file = path.open("rb")
                file.seek(since)
            if file is not None:
                if os.fstat(file.fileno()).st_size < file.tell():  # it was emptied
                    file.seek(0)
                if added := file.read():
                    yield added.decode(errors="replace")
                    continue
                if newer := _next(path, file):
                    if added := file.read():  # between the last look and the rotation
                        yield added.decode(errors="replace")
                    file.close()
                    file = newer
                    continue
            if is_last:
                return
            is_last = not keep_on()
            if not is_last:
                time.sleep(poll_s)
    finally:
        if file is not None:
            file.close()


def _newest_first(path: Path) -> Iterator[Path]:
    """The log and the older ones behind it, as far as there are any."""
    return itertools.takewhile(Path.exists, _names(path))


def _names(path: Path) -> Iterator[Path]:
    yield path
    yield from (path.with_name(f"{path.name}.{number}") for number in itertools.count(1))


def _next(path: Path, file: BinaryIO) -> BinaryIO | None:
    """The log that was begun after `file` was set aside, once its writer can't add to `file` any more."""
    newer: Path | None = None
    for older in _names(path):
        try:
            status = older.stat()
        except FileNotFoundError:
            break
        if os.path.samestat(status, os.fstat(file.fileno())):
            return None if newer is None else newer.open("rb")
        newer = older
    return path.open("rb") if newer is not None else None


__all__ = ["follow", "readable", "tail"]
