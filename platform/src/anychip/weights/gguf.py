"""Parse a GGUF file: its metadata and where its tensors lie. Knows the container; knows no model and no names."""

from __future__ import annotations

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
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


class GGUFTensor(NamedTuple):
    """A tensor as the file lists it; `shape` in torch's order, `start` in bytes from the file's beginning."""

    name: str
    shape: tuple[int, ...]
    format: BlockFormat
    start: int
    nbytes: int


@dataclass(frozen=True)
class GGUFFile:
    """A parsed header and the open file. `problems` is about single tensors; those are left out of `tensors`."""

    metadata: Mapping[str, object]
    tensors: tuple[GGUFTensor, ...]
    problems: tuple[str, ...]
    mapped: MappedFile


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
        cursor.check_version()
        tensor_count, key_count = cursor.natural("Q"), cursor.natural("Q")
        metadata = dict(cursor.key_value() for _ in range(key_count))
        entries = [_entry(cursor) for _ in range(tensor_count)]
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise _Corrupt(f"general.alignment is {alignment!r}")
    except (_Corrupt, UnicodeDecodeError) as error:
        mapped.close()
        raise CheckpointInvalid(f"checkpoint {path}: {error} (at byte {cursor.at:,} of {cursor.nbytes:,})") from error
    base = -(-cursor.at // alignment) * alignment
    problems: list[str] = []
    tensors = tuple(tensor for entry in entries if (tensor := _place(entry, base, problems)) is not None)
    problems += _beyond(path, tensors, len(mapped))
    return GGUFFile(metadata, tensors, tuple(problems), mapped)


class _Cursor:
    """Walks through the header. Every count is checked against what the file still holds before it is believed."""

    def __init__(self, mapped: MappedFile) -> None:
        self.nbytes = len(mapped)
        self.at = 0
        self._bytes = mapped.window(0, self.nbytes).data

    def take(self, nbytes: int) -> memoryview:
        if nbytes > self.nbytes - self.at:
            raise _Corrupt(f"the file is truncated: {nbytes:,} more bytes of header were expected")
        self.at += nbytes
        return self._bytes[self.at - nbytes : self.at]

    def natural(self, code: str) -> int:
        number: int = struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]
        return number

    def text(self) -> str:
        return bytes(self.take(self.natural("Q"))).decode("utf-8")

    def key_value(self) -> tuple[str, object]:
        return self.text(), self._value(self.natural("I"))

    def check_version(self) -> None:
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
        if item in _SCALARS:
            code = f"<{count}{_SCALARS[item]}"
            width = struct.calcsize("<" + _SCALARS[item])
            return list(struct.unpack(code, self.take(count * width)))
        if item != _STRING:
            raise _Corrupt(f"metadata arrays of type {item} are unknown")
        return [self.text() for _ in range(count)]


class _Entry(NamedTuple):
    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


def _entry(cursor: _Cursor) -> _Entry:
    name = cursor.text()
    count = cursor.natural("I")
    if count > _MAX_DIMENSIONS:
        raise _Corrupt(f"tensor {name!r} has {count} dimensions")
    # the file lists the fastest-varying dimension first
    shape = tuple(cursor.natural("Q") for _ in range(count))[::-1]
    return _Entry(name, shape, cursor.natural("I"), cursor.natural("Q"))


def _place(entry: _Entry, base: int, problems: list[str]) -> GGUFTensor | None:
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
    return GGUFTensor(entry.name, entry.shape, block, base + entry.offset, nbytes)


def _beyond(path: Path, tensors: tuple[GGUFTensor, ...], nbytes: int) -> list[str]:
    end = max((tensor.start + tensor.nbytes for tensor in tensors), default=0)
    if end <= nbytes:
        return []
    return [
        f"{path.name} is truncated: it has {nbytes:,} bytes, its header asks for {end:,}, "
        f"{end - nbytes:,} bytes are missing"
    ]


__all__ = ["GGUFFile", "GGUFTensor", "parse_gguf"]
