"""The log's process: what a service and its children print becomes a file of JSON objects, one a line, which rotates.

Run by path, isolated and with the standard library alone, so that nothing that breaks a service breaks its log. Reads
standard input to its end, which comes when the last process that prints there has ended. Knows lines and files; knows
nothing of what they say.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import os
import sys
from collections.abc import Iterator

LOG_BYTES = 32 * 1024 * 1024  #: a log that grows beyond it becomes service.log.1, and so on
OLDER_LOGS = 4  #: how many older ones are kept
LINE_BYTES = 1024 * 1024  #: a longer line is cut in pieces
READ_BYTES = 1024 * 1024


class LogFile:
    """A log that rotates. It never raises for a full disk: it counts what is lost and says so once there is room.

    A shared lock on the present file tells others that there may be more to come (see `anychip.deploy.log_pipe`).

    Args:
        path: where the log is; it may be moved or removed by others at any time.
        descriptor: the file, open for appending and locked.
        limit_bytes: how large one file may grow; a line that is longer than that has a file of its own.
        older: how many older files are kept, as PATH.1, PATH.2 ...
    """

    def __init__(self, path: str, descriptor: int, limit_bytes: int = LOG_BYTES, older: int = OLDER_LOGS) -> None:
        self._path = path
        self._descriptor = descriptor
        self._limit_bytes = limit_bytes
        self._older = older
        self._lines_lost = 0
        self._reason = ""

    def write(self, lines: bytes) -> None:
        """Append whole lines."""
        if self._lines_lost:
            lost = {"lines": self._lines_lost, "reason": self._reason}
            if not self._append(entry("lines of the log were lost", "error", **lost)):
                self._lines_lost += lines.count(b"\n")
                return
            self._lines_lost = 0
        if not self._append(lines):
            self._lines_lost += lines.count(b"\n")

    def close(self) -> None:
        if self._lines_lost:
            self.write(b"")
        os.close(self._descriptor)

    def _append(self, lines: bytes) -> bool:
        try:
            self._prepare(len(lines))
            size = os.fstat(self._descriptor).st_size
            if os.write(self._descriptor, lines) < len(lines):
                os.ftruncate(self._descriptor, size)  # no half a line
                raise OSError(0, "the disk is full")
        except OSError as error:
            self._reason = error.strerror or str(error)
            return False
        return True

    def _prepare(self, more_bytes: int) -> None:
        """Have the present file open, and room in it."""
        if not self._is_present():
            self._reopen()
        size = os.fstat(self._descriptor).st_size
        if size and size + more_bytes > self._limit_bytes:
            with _locked(os.path.dirname(self._path)):
                if self._is_present():  # nobody else has rotated it meanwhile
                    self._shift()
            self._reopen()

    def _is_present(self) -> bool:
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self._descriptor))
        except FileNotFoundError:
            return False

    def _shift(self) -> None:
        for number in range(self._older, 0, -1):
            newer = f"{self._path}.{number - 1}" if number > 1 else self._path
            with contextlib.suppress(FileNotFoundError):
                os.replace(newer, f"{self._path}.{number}")

    def _reopen(self) -> None:
        before, self._descriptor = self._descriptor, open_log(self._path)
        os.close(before)


def open_log(path: str) -> int:
    """The log's descriptor, for appending, with the lock that says that somebody writes."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


@contextlib.contextmanager
def _locked(folder: str) -> Iterator[None]:
    descriptor = os.open(folder or ".", os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def entry(event: str, level: str, **more: object) -> bytes:
    """A line of the log, in the shape that the service's own lines have."""
    now = datetime.datetime.now(datetime.timezone.utc).isoformat().replace("+00:00", "Z")
    return json.dumps({**more, "event": event, "level": level, "timestamp": now}).encode() + b"\n"


def as_entry(line: bytes) -> bytes:
    """A printed line as a line of the log: an object as it is, anything else as the event of one; nothing for none."""
    line = line.rstrip(b"\r")
    if not line.strip():
        return b""
    return line + b"\n" if _is_object(line) else entry(line.decode(errors="backslashreplace"), "info", source="output")


def _is_object(line: bytes) -> bool:
    if not line.startswith(b"{"):
        return False
    try:
        return isinstance(json.loads(line.decode(), parse_constant=_refuse), dict)
    except (ValueError, RecursionError):
        return False


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")


def pump(source: int, log: LogFile) -> None:
    """Move what is printed to the log until nobody can print any more."""
    rest = b""
    while data := os.read(source, READ_BYTES):
        *lines, rest = (rest + data).split(b"\n")
        while len(rest) > LINE_BYTES:
            lines, rest = [*lines, rest[:LINE_BYTES]], rest[LINE_BYTES:]
        if entries := b"".join(map(as_entry, lines)):
            log.write(entries)
    if last := as_entry(rest):
        log.write(last)


def main(path: str) -> None:
    """Pump standard input to the log at `path`, which is open as standard output."""
    if os.fork():
        os._exit(0)  # what remains is nobody's child: what ends a service with its children doesn't end its log
    log = LogFile(path, os.dup(1))
    os.close(1)
    pump(0, log)
    log.close()
    os._exit(0)  # nothing is left to do, and who waits for the log's end may look for this process


if __name__ == "__main__":
    main(sys.argv[1])

__all__ = ["LINE_BYTES", "LOG_BYTES", "OLDER_LOGS", "LogFile", "as_entry", "entry", "open_log", "pump"]
