"""Read one shard's header and check that its tensors fill the file. Knows the container; knows no index and no model.

What the format asks for is checked here, without its library: tensors lie one behind the other, without gaps and
without overlap, up to the end of the file. So no header can promise more than the file holds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeGuard

import torch

from anychip.weights.files import Unreadable, parse_object
from anychip.weights.tensors import TensorInfo

_HEADER_LIMIT = 32_000_000  # bytes; the format allows 100 million, 60,000 tensors take 8

_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_WIDTHS = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "U16": 2, "I16": 2, "F16": 2,
    "BF16": 2, "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip


class Place(NamedTuple):
    """Where a tensor lies: its shard and the bytes from `start`."""

    shard: Path
    start: int
    info: TensorInfo


def read_header(shard: Path, problems: list[str]) -> tuple[Place, ...] | None:
    """The tensors of a shard; everything wrong is noted, None where nothing can be read."""
    try:
        nbytes = shard.stat().st_size
        content = _content(shard, nbytes)
    except (Unreadable, OSError) as error:
        problems.append(f"shard {shard.name} {error}")
        return None
    content.entries.pop("__metadata__", None)
    places: list[Place] = []
    for name, entry in content.entries.items():
        place = _place(shard, content.data_start, name, entry)
        if isinstance(place, str):
            problems.append(f"shard {shard.name}: tensor {name} {place}")
        else:
            places.append(place)
    if len(places) == len(content.entries):
        problems += _misplaced(shard.name, places, content.data_start, nbytes)
    return tuple(places)


class _Content(NamedTuple):
    data_start: int
    entries: dict[str, object]


def _content(shard: Path, nbytes: int) -> _Content:
    with shard.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if nbytes < 8 or length > nbytes - 8:
            raise Unreadable(
                f"is truncated or not safetensors: its header claims {length:,} bytes, the file has {nbytes:,}"
            )
        if length > _HEADER_LIMIT:
            raise Unreadable(f"has a header of {length:,} bytes, expected at most {_HEADER_LIMIT:,}")
        raw = file.read(length)
    try:
        return _Content(8 + length, parse_object(raw))
    except Unreadable as error:
        raise Unreadable(f"has a corrupt header: it {error}") from error


def _place(shard: Path, data_start: int, name: str, entry: object) -> Place | str:
    """Where one tensor lies, or what is wrong with its entry."""
    if not isinstance(entry, Mapping):
        return "has a corrupt header entry"
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not _naturals(shape) or not _naturals(offsets) or len(offsets) != 2:
        return "has a corrupt header entry"
    if not isinstance(dtype, str) or dtype not in _WIDTHS:
        return f"has dtype {str(dtype)[:40]}, which is unknown (supported: {', '.join(_DTYPES)})"
    if len(shape) > 8:
        return f"has {len(shape)} dimensions, expected at most 8"
    nbytes = math.prod(shape) * _WIDTHS[dtype]
    if offsets[1] - offsets[0] != nbytes:
        return f"has data_offsets {offsets} for {dtype} {shape}, which needs {nbytes:,} bytes"
    # a dtype that no weight may have is told by the caller, once it is known which tensors are read
    info = TensorInfo(name, tuple(shape), _DTYPES.get(dtype, torch.uint8), dtype, nbytes)
    return Place(shard, data_start + offsets[0], info)


def _naturals(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _misplaced(shard: str, places: Sequence[Place], data_start: int, nbytes: int) -> list[str]:
    end = max((place.start + place.info.nbytes for place in places), default=data_start)
    if end > nbytes:
        return [
            f"shard {shard} is truncated: it has {nbytes:,} bytes, its header asks for {end:,}, "
            f"{end - nbytes:,} bytes are missing"
        ]
    in_order = sorted((place for place in places if place.info.nbytes), key=lambda place: place.start)
    problems = [
        f"shard {shard}: tensors {one.info.name} and {other.info.name} lie over each other"
        for one, other in itertools.pairwise(in_order)
        if one.start + one.info.nbytes > other.start
    ]
    held = sum(place.info.nbytes for place in places)
    if not problems and held < nbytes - data_start:
        problems.append(f"shard {shard}: {nbytes - data_start - held:,} bytes belong to no tensor")
    return problems


__all__ = ["Place", "read_header"]
