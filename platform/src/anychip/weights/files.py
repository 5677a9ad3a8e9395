"""Read the small files of a checkpoint with bounded memory. Knows text and JSON; knows no key and no model.

Every file of a checkpoint comes from strangers. What is read is bounded before it is read, and what is parsed before
it is parsed: a bracket of JSON takes one byte in the file and sixty in memory.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

from anychip_sdk.errors import CheckpointInvalid

MAX_TEXT_BYTES = 32 * 2**20
MAX_VALUES = 1_000_000  #: of one JSON text
MAX_DEPTH = 32  #: of objects and lists within each other
MAX_INTEGER = 2**63


class Unreadable(Exception):
    """A file can't be read as what it should be; says why, without the file's name."""


def read_text(path: Path, limit: int = MAX_TEXT_BYTES) -> str:
    """The text of a file.

    Raises:
        Unreadable: it is no regular file, too long, or no UTF-8; with the position.
    """
    return decoded(read_bytes(path, limit))


def read_bytes(path: Path, limit: int) -> bytes:
    """All of a file.

    Raises:
        Unreadable: it is no regular file, too long, or can't be opened.
    """
    reason = not_a_file(path)
    if reason is not None:
        raise Unreadable(reason)
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise Unreadable(f"can't be read: {error.strerror or error}") from error
    if len(data) > limit:
        raise Unreadable(f"has {path.stat().st_size:,} bytes, expected at most {limit:,}")
    return data


def read_head(path: Path, nbytes: int) -> bytes:
    """The first bytes of a file, fewer where it has no more.

    Raises:
        Unreadable: it can't be opened.
    """
    try:
        with path.open("rb") as file:
            return file.read(nbytes)
    except OSError as error:
        raise Unreadable(f"can't be read: {error.strerror or error}") from error


def decoded(data: bytes) -> str:
    """Bytes as UTF-8.

    Raises:
        Unreadable: they are none, with the place.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Unreadable(
            f"is no UTF-8: byte {data[error.start]:#04x} at position {error.start:,}, line {line:,}"
        ) from error


def not_a_file(path: Path) -> str | None:
    """Why a path holds no file: a link into nothing, a folder, a pipe; None where it does."""
    try:
        if path.is_file():
            return None
        if path.is_symlink():
            return f"is a link to {path.readlink()}, which leads to no file"
        return "is not a regular file" if path.exists() else "is missing"
    except OSError as error:
        return f"can't be read: {error.strerror or error}"


def read_json(path: Path, limit: int = MAX_TEXT_BYTES) -> dict[str, object]:
    """The object in a JSON file.

    Raises:
        Unreadable: as `read_text` and `parse_object`.
    """
    return parse_object(read_bytes(path, limit))


def parse_object(data: bytes) -> dict[str, object]:
    """The object in a JSON text: no key twice, every number finite and within 64 bits.

    Raises:
        Unreadable: it is anything else, or has too many values or levels.
    """
    values = data.count(b",") + data.count(b"[") + data.count(b"{") + 1
    if values > MAX_VALUES:
        raise Unreadable(f"holds up to {values:,} values, expected at most {MAX_VALUES:,}")
    text = decoded(data)
    try:
        content = json.loads(text, object_pairs_hook=_unique)
    except RecursionError as error:
        raise Unreadable("is not readable JSON: its objects and lists nest too deeply") from error
    except ValueError as error:
        raise Unreadable(f"is not readable JSON: {str(error)[:200]}") from error
    if not isinstance(content, dict):
        raise Unreadable(f"holds {type(content).__name__}, expected an object")
    if not _is_plain(content):
        raise Unreadable(_first_problem(content))
    return content


def load_json(path: Path, problems: list[str]) -> Mapping[str, object]:
    """`read_json` that notes what is wrong, with the file's name, and is empty then."""
    try:
        return read_json(path)
    except Unreadable as error:
        problems.append(f"{path.name} {error}")
        return {}


def read_template(path: Path) -> str:
    """`read_text` of a checkpoint's chat template.

    Raises:
        CheckpointInvalid: it can't be read; with the file and the position.
    """
    try:
        return read_text(path)
    except Unreadable as error:
        raise CheckpointInvalid(f"checkpoint {path.parent}: {path.name} {error}") from error


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in pairs:
        if name in found:
            message = f"key {name[:100]!r} is there twice"
            raise ValueError(message)
        found[name] = value
    return found


def _is_plain(content: object) -> bool:
    """Whether every number is one and nothing nests too deeply; level by level, as nothing here may call itself."""
    level: list[object] = [content]
    for _ in range(MAX_DEPTH):
        below: list[object] = []
        for value in level:
            if isinstance(value, dict):
                below += value.values()
            elif isinstance(value, list):
                below += value
            elif _is_strange(value):
                return False
        if not below:
            return True
        level = below
    return False


def _first_problem(content: object) -> str:
    level: list[tuple[str, object]] = [("", content)]
    for _ in range(MAX_DEPTH):
        below: list[tuple[str, object]] = []
        for name, value in level:
            if isinstance(value, dict):
                below += [(f"{name}.{key[:100]}"[-200:].lstrip("."), item) for key, item in value.items()]
            elif isinstance(value, list):
                below += [(name, item) for item in value]
            elif isinstance(value, (int, float)) and _is_strange(value):
                return f"says {name} is {_number(value)}, expected a finite number within 64 bits"
        level = below
    return f"nests more than {MAX_DEPTH} levels of objects and lists, at {level[0][0]}"


def _is_strange(value: object) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    return isinstance(value, int) and not -MAX_INTEGER <= value < 2 * MAX_INTEGER


def _number(value: float) -> str:
    if isinstance(value, int):
        return f"a whole number of {value.bit_length():,} bits"
    return "NaN" if math.isnan(value) else f"{'-' if value < 0 else ''}Infinity, or beyond what a number holds"


__all__ = [
    "MAX_TEXT_BYTES",
    "Unreadable",
    "decoded",
    "load_json",
    "not_a_file",
    "parse_object",
    "read_bytes",
    "read_head",
    "read_json",
    "read_template",
    "read_text",
]
