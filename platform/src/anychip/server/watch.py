"""Read files anew when they change, while the service runs. Knows when; knows nothing of what is in them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import structlog

from anychip_sdk.errors import AnychipError

POLL_S = 1.0

log = structlog.get_logger("anychip.server")


class Watched(NamedTuple):
    """Files, and what reads them.

    Attributes:
        what: in words, for the log.
        read: takes up what the files hold now; returns False where that is nothing new. What it raises is logged, and
            what was read before stays.
    """

    what: str
    paths: tuple[Path, ...]
    read: Callable[[], bool]


async def watch(watched: Sequence[Watched], poll_s: float = POLL_S) -> None:
    """Look at the files until cancelled; each is read once at the beginning, in case it has changed by then."""
    seen: dict[str, object] = {}
    while watched:
        for one in watched:
            now = await asyncio.to_thread(_stamps, one.paths)  # a file system that hangs holds nothing else up
            if seen.get(one.what) != now:
                seen[one.what] = now
                _read(one)
        await asyncio.sleep(poll_s)


def _read(one: Watched) -> None:
    files = [str(path) for path in one.paths]
    try:
        if one.read():
            log.info(f"{one.what} taken up anew", files=files)
    except (AnychipError, OSError, ValueError) as error:
        log.error(f"{one.what} not taken up, those before stay", files=files, reason=str(error))


def _stamps(paths: tuple[Path, ...]) -> tuple[object, ...]:
    """What changes whenever a file does."""
    return tuple(map(_stamp, paths))


def _stamp(path: Path) -> object:
    try:
        status = path.stat()
    except OSError as error:
        return error.errno
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


__all__ = ["POLL_S", "Watched", "watch"]
