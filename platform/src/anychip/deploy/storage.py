"""Read and write the small JSON files of a service whole. Knows full disks and damage; knows no service."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from pathlib import Path
from typing import TypeVar

import msgspec

from anychip_sdk.errors import IntegrityFailed, PreconditionFailed

SCHEMA_VERSION = 1
LARGEST_BYTES = 16 << 20  #: a larger file is none of ours
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
T = TypeVar("T")


class TooNew(IntegrityFailed):
    """A newer anychip wrote the file: it is whole, but not for this one to change."""


def read(path: Path, kind: type[T]) -> T:
    """The file's content.

    Raises:
        TooNew: it has another schema version.
        IntegrityFailed: it can't be read, or holds something else.
    """
    try:
        content = json.loads(_bytes(path))
        version = content["schema_version"]
        if version != SCHEMA_VERSION:
            message = f"{path} has schema version {version}, this anychip knows {SCHEMA_VERSION}"
            raise TooNew(message, hint="use the anychip that wrote it")
        return msgspec.convert(content, kind)
    except OSError as error:
        raise _damaged(path, f"can't be read: {error.strerror or error}") from error
    except (ValueError, LookupError, TypeError, RecursionError, msgspec.MsgspecError) as error:
        raise _damaged(path, f"is damaged: {error}") from error


def write(path: Path, value: object) -> None:
    """Replace a file's content, all or nothing: a crash leaves the old one.

    On a full disk the file is overwritten in the room that it has.

    Raises:
        PreconditionFailed: it can't be written, with the path and the reason.
    """
    # json, as msgspec refuses the half characters by which Python holds file names that aren't UTF-8
    content = json.dumps(msgspec.to_builtins(value), indent=2).encode()
    make_folder(path.parent)
    try:
        try:
            _replace(path, content)
        except OSError as error:
            if error.errno not in FULL or not path.is_file():
                raise
            _overwrite(path, content)
    except OSError as error:
        raise unusable(path, "can't be written", error) from error


def make_folder(folder: Path) -> None:
    """The folder and what is missing above it, for the user alone; makedirs gives `mode` to the last one only.

    Raises:
        PreconditionFailed: it can't be made, or a file is in its place.
    """
    try:
        _make_folder(folder)
    except OSError as error:
        in_the_way = next((one for one in (folder, *folder.parents) if one.exists() and not one.is_dir()), None)
        if in_the_way is not None:
            message = f"{in_the_way} is a file, expected a folder"
            raise PreconditionFailed(message, hint="move it, or set ANYCHIP_HOME to a folder") from error
        raise unusable(folder, "can't be made", error) from error


def unusable(path: Path, what: str, error: OSError) -> PreconditionFailed:
    """The error for a path of the state's folder that the system refuses."""
    full = error.errno in FULL
    hint = "make room there" if full else "ANYCHIP_HOME names the folder for state; it must be this user's"
    return PreconditionFailed(f"{path} {what}: {error.strerror or error}", hint=hint)


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        if not folder.parent.is_dir():
            _make_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def _bytes(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe by that name would block for ever
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is no file")
        content = file.read(LARGEST_BYTES + 1)
    if len(content) > LARGEST_BYTES:
        raise ValueError(f"it is larger than {LARGEST_BYTES} bytes")
    return content


def _replace(path: Path, content: bytes) -> None:
    draft = path.with_name(f".{path.name}.draft")  # one name: what a killed command left is written over
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


def _overwrite(path: Path, content: bytes) -> None:
    with path.open("r+b") as file:
        size = os.fstat(file.fileno()).st_size
        if len(content) > size:
            os.posix_fallocate(file.fileno(), 0, len(content))  # refused before anything is lost
        file.write(content.ljust(size))
        file.flush()
        os.fsync(file.fileno())


def _damaged(path: Path, what: str) -> IntegrityFailed:
    hint = "platform down ends what still runs and puts the file aside"
    return IntegrityFailed(f"{path} {what}", hint=hint)


__all__ = ["FULL", "SCHEMA_VERSION", "TooNew", "make_folder", "read", "unusable", "write"]
