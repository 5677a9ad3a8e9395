"""Parse a GGUF file: its metadata and where its tensors lie. Knows the container; knows no model and no names.

Every count and every length is compared with what the file still holds and with a limit before anything is read, so
that the time and the memory of reading a header are bounded, whatever it says.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from anychip.weights.mapped import MappedFile, unreadable
from anychip.weights.quantized import FORMATS, UNSUPPORTED_NAMES, BlockFormat, supported_names
from anychip_sdk.errors import CheckpointInvalid

MAGIC = b"GGUF"
VERSIONS = (2, 3)

_DEFAULT_ALIGNMENT = 32
_MAX_DIMENSIONS = 4
_MAX_ALIGNMENT = 2**20
_MAX_KEYS = 2**16
_MAX_TENSORS = 2**16
_MAX_ITEMS = 2**20  # of all arrays together; the largest vocabularies with their merges have 800,000
_MAX_TEXT_BYTES = 2**26  # of all strings together
_MAX_NAME_BYTES = 2**12
_MIN_ENTRY_BYTES = 12  # of a key or a tensor
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


class GGUFTensor(NamedTuple):
    """A tensor as the file lists it; `shape` in torch's order, `start` in bytes from the beginning of its file."""

    name: str
    shape: tuple[int, ...]
    format: BlockFormat
    start: int
    nbytes: int
    mapped: MappedFile


@dataclass(frozen=True)
class GGUFFile:
    """A parsed header and the open file, or files where parts were joined.

    `problems` is about single tensors; those are left out of `tensors`.
    """

    metadata: Mapping[str, object]
    tensors: tuple[GGUFTensor, ...]
    problems: tuple[str, ...]
    mapped: tuple[MappedFile, ...]

    def close(self) -> None:
        for one in self.mapped:
            one.close()


class _Corrupt(Exception):
    """The header ends too early or says something impossible."""


def parse_gguf(path: Path) -> GGUFFile:
    """Read and check the header.

    Raises:
        CheckpointInvalid: the header itself can't be read.
    """
    reason = unreadable(path)
    if reason is not None:
        raise CheckpointInvalid(f"checkpoint {path}: {reason}")
    mapped = MappedFile(path)
    cursor = _Cursor(mapped)
    try:
        metadata, entries = cursor.header()
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if type(alignment) is not int or not 1 <= alignment <= _MAX_ALIGNMENT:
            raise _Corrupt(f"general.alignment is {alignment!r:.40}, expected 1 to {_MAX_ALIGNMENT:,}")
    except (_Corrupt, UnicodeDecodeError) as error:
        mapped.close()
        raise CheckpointInvalid(f"checkpoint {path}: {error} (at byte {cursor.at:,} of {cursor.nbytes:,})") from error
    base = -(-cursor.at // alignment) * alignment
    problems: list[str] = []
    placed = (_place(entry, base, mapped, problems) for entry in entries)
    tensors = tuple(tensor for tensor in placed if tensor is not None)
    problems += _misplaced(path, tensors, len(mapped))
    return GGUFFile(metadata, tensors, tuple(problems), (mapped,))


class _Cursor:
    """Walks through the header. Every count is checked against what the file still holds before it is believed."""

    def __init__(self, mapped: MappedFile) -> None:
        self.nbytes = len(mapped)
        self.at = 0
        self._bytes = mapped.window(0, self.nbytes).data
        self._items_left = _MAX_ITEMS
        self._text_left = _MAX_TEXT_BYTES

    def header(self) -> tuple[dict[str, object], list[_Entry]]:
        self._check_version()
        tensors, keys = self.count("tensors", _MAX_TENSORS), self.count("metadata keys", _MAX_KEYS)
        metadata: dict[str, object] = {}
        for _ in range(keys):
            key = self.text(_MAX_NAME_BYTES)
            if key in metadata:
                raise _Corrupt(f"metadata {key} is there twice")
            try:
                metadata[key] = self._value(self.natural("I"))
            except UnicodeDecodeError as error:
                byte = error.object[error.start]
                raise _Corrupt(f"metadata {key} is no UTF-8: byte {byte:#04x} at position {error.start:,}") from error
            except _Corrupt as error:
                raise _Corrupt(f"metadata {key}: {error}") from error
        return metadata, [_entry(self) for _ in range(tensors)]

    def take(self, nbytes: int) -> memoryview:
        if nbytes > self.nbytes - self.at:
            raise _Corrupt(f"the file is truncated: {nbytes:,} more bytes of header were expected")
        self.at += nbytes
        return self._bytes[self.at - nbytes : self.at]

    def natural(self, code: str) -> int:
        number: int = struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]
        return number

    def count(self, what: str, most: int) -> int:
        number = self.natural("Q")
        if number * _MIN_ENTRY_BYTES > self.nbytes - self.at:
            raise _Corrupt(f"the file is truncated: {number:,} {what} were expected")
        if number > most:
            raise _Corrupt(f"says that it has {number:,} {what}, expected at most {most:,}")
        return number

    def text(self, most: int = _MAX_TEXT_BYTES) -> str:
        nbytes = self.natural("Q")
        if nbytes > self.nbytes - self.at:
            raise _Corrupt(f"the file is truncated: a text of {nbytes:,} bytes was expected")
        if nbytes > min(most, self._text_left):
            raise _Corrupt(f"has a text of {nbytes:,} bytes, expected at most {min(most, self._text_left):,}")
        self._text_left -= nbytes
        return str(self.take(nbytes), "utf-8")

    def _check_version(self) -> None:
        magic = bytes(self.take(4))
        if magic != MAGIC:
            raise _Corrupt(f"is not a GGUF file: it begins with {magic!r}, expected {MAGIC!r}")
        version = self.natural("I")
        if version not in VERSIONS:
            big = " (a big-endian file)" if version & 0xFFFF == 0 else ""
            supported = ", ".join(map(str, VERSIONS))
            raise _Corrupt(f"GGUF version {version}{big} is not supported (supported: {supported})")

    def _value(self, kind: int) -> object:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            return self._array(self.natural("I"), self.natural("Q"))
        if kind not in _SCALARS:
            raise _Corrupt(f"metadata type {kind} is unknown")
        code = "<" + _SCALARS[kind]
        number: object = struct.unpack(code, self.take(struct.calcsize(code)))[0]
        return number

    def _array(self, item: int, count: int) -> list[object]:
        if item != _STRING and item not in _SCALARS:
            raise _Corrupt(f"metadata arrays of type {item} are unknown")
        code = f"<{_SCALARS.get(item, 'Q')}"  # a string has at least its length
        if count * struct.calcsize(code) > self.nbytes - self.at:
            raise _Corrupt(f"the file is truncated: an array of {count:,} values was expected")
        if count > self._items_left:
            raise _Corrupt(f"is an array of {count:,} values, expected at most {self._items_left:,}")
        self._items_left -= count
        if item == _STRING:
            return self._texts(count)
        return list(struct.unpack(f"<{count}{_SCALARS[item]}", self.take(count * struct.calcsize(code))))

    def _texts(self, count: int) -> list[object]:
        """`text` as often: vocabularies have a million, so nothing is called that isn't needed."""
        found: list[object] = []
        data, at, end, length_at = self._bytes, self.at, self.nbytes - 8, struct.Struct("<Q").unpack_from
        last = min(self.nbytes, at + 8 * count + self._text_left)
        for _ in range(count):
            start = at + 8
            at = start + length_at(data, at)[0] if at <= end else last + 1
            if at > last:
                self.at = start - 8
                raise _Corrupt(f"the file is truncated, or its texts have more than {_MAX_TEXT_BYTES:,} bytes in all")
            found.append(str(data[start:at], "utf-8"))
        self._text_left -= at - self.at - 8 * count
        self.at = at
        return found


class _Entry(NamedTuple):
    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


def _entry(cursor: _Cursor) -> _Entry:
    name = cursor.text(_MAX_NAME_BYTES)
    count = cursor.natural("I")
    if count > _MAX_DIMENSIONS:
        raise _Corrupt(f"tensor {name!r} has {count} dimensions, expected at most {_MAX_DIMENSIONS}")
    # the file lists the fastest-varying dimension first
    shape = tuple(cursor.natural("Q") for _ in range(count))[::-1]
    return _Entry(name, shape, cursor.natural("I"), cursor.natural("Q"))


def _place(entry: _Entry, base: int, mapped: MappedFile, problems: list[str]) -> GGUFTensor | None:
    block = FORMATS.get(entry.kind)
    if block is None:
        kind = UNSUPPORTED_NAMES.get(entry.kind, f"type {entry.kind}")
        problems.append(
            f"tensor {entry.name} is stored as {kind}, which is not supported (supported: {supported_names()})"
        )
        return None
    columns = entry.shape[-1] if entry.shape else 1
    if columns % block.values:
        problems.append(f"tensor {entry.name} has {columns} columns, not a multiple of {block.name}'s {block.values}")
        return None
    nbytes = math.prod(entry.shape) // block.values * block.nbytes
    return GGUFTensor(entry.name, entry.shape, block, base + entry.offset, nbytes, mapped)


def _misplaced(path: Path, tensors: tuple[GGUFTensor, ...], nbytes: int) -> list[str]:
    end = max((tensor.start + tensor.nbytes for tensor in tensors), default=0)
    if end > nbytes:
        return [
            f"{path.name} is truncated: it has {nbytes:,} bytes, its header asks for {end:,}, "
            f"{end - nbytes:,} bytes are missing"
        ]
    in_order = sorted((tensor for tensor in tensors if tensor.nbytes), key=lambda tensor: tensor.start)
    return [
        f"{path.name}: tensors {one.name} and {other.name} lie over each other"
        for one, other in itertools.pairwise(in_order)
        if one.start + one.nbytes > other.start
    ]


__all__ = ["GGUFFile", "GGUFTensor", "parse_gguf"]
