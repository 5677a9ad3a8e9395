"""Open a Hugging Face directory of safetensors shards. Knows shards, indexes and headers; knows no model's names.

Headers are read here rather than through the safetensors library, so that every problem of every shard is told
at once, with the shard's name and the missing bytes, before anything is mapped.
"""

from __future__ import annotations

import itertools
import json
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, TypeGuard

import torch

from anychip.weights.mapped import MappedFile, unreadable
from anychip.weights.names import shorten
from anychip.weights.quantized import BlockFormat, Bytes
from anychip.weights.tensors import Opened, TensorInfo, TokenizerSource, row_range

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_SHARD = re.compile(r"^model-(\d+)-of-(\d+)\.safetensors$")
_HEADER_LIMIT = 100_000_000  # bytes; the format's own limit

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


class ShardReader:
    """Reads tensors as views of the mapped shards; one shard is mapped at a time. Not for several threads."""

    def __init__(self, places: Mapping[str, Place]) -> None:
        self._places = places
        self._mapped: tuple[Path, MappedFile] | None = None

    def read(self, info: TensorInfo, rows: slice | None) -> torch.Tensor:
        place = self._places[info.name]
        if not info.shape:
            return self._view(place.shard, place.start, info.nbytes, info.dtype).reshape(())
        first, last = row_range(rows, info.shape[0])
        row_nbytes = info.nbytes // info.shape[0] if info.shape[0] else 0
        flat = self._view(place.shard, place.start + first * row_nbytes, (last - first) * row_nbytes, info.dtype)
        return flat.reshape(last - first, *info.shape[1:])

    def read_blocks(self, info: TensorInfo, rows: slice) -> tuple[Bytes, BlockFormat]:
        message = f"tensor {info.name} is stored as {info.storage}, which is no format of blocks"
        raise ValueError(message)

    def close(self) -> None:
        if self._mapped is not None:
            self._mapped[1].close()
        self._mapped = None

    def _view(self, shard: Path, start: int, nbytes: int, dtype: torch.dtype) -> torch.Tensor:
        if nbytes == 0:
            return torch.empty(0, dtype=dtype)
        if self._mapped is None or self._mapped[0] != shard:
            self.close()
            self._mapped = (shard, MappedFile(shard))
        array = self._mapped[1].window(start, nbytes)
        with warnings.catch_warnings():
            # torch has no read-only tensors and warns; `Checkpoint.read` documents that the view is read-only
            warnings.simplefilter("ignore", UserWarning)
            raw = torch.from_numpy(array)
        if start % dtype.itemsize:  # old files don't align their data
            raw = raw.clone()
        return raw.view(dtype)


def open_directory(directory: Path) -> Opened:
    """Check every file of a directory. Nothing is raised: what is wrong is in `problems`."""
    problems: list[str] = []
    raw_config = _json(directory / "config.json", problems, required=True)
    generation = _json(directory / "generation_config.json", problems, required=False)
    shards, listed, notes = _choose(directory, problems)
    places: dict[str, Place] = {}
    for shard in shards:
        reason = unreadable(shard)
        if reason is not None:
            listing = f", {INDEX} lists it" if listed and not shard.is_file() else ""
            problems.append(f"shard {reason}{listing}")
            continue
        _read_shard(shard, listed, places, problems)
    return Opened(
        problems=problems,
        raw_config=raw_config,
        generation_config=generation,
        tokenizer=_tokenizer(directory, problems),
        tensors={name: place.info for name, place in places.items()},
        reader=ShardReader(places),
        notes=notes,
    )


def _json(path: Path, problems: list[str], *, required: bool) -> Mapping[str, object]:
    if not path.is_file():
        if required:
            problems.append(f"{path.name} is missing")
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        problems.append(f"{path.name} is not readable JSON: {error}")
        return {}
    if not isinstance(content, dict):
        problems.append(f"{path.name} holds {type(content).__name__}, expected an object")
        return {}
    return content


class _Choice(NamedTuple):
    shards: tuple[Path, ...]
    listed: Mapping[str, str]  # tensor -> shard, from the index; empty without one
    notes: tuple[str, ...]


def _choose(directory: Path, problems: list[str]) -> _Choice:
    """One set of weights out of what the directory holds: the single file, else the index, else numbered shards."""
    present = sorted(path.name for path in directory.iterdir() if path.is_file())
    numbered = [name for name in present if _SHARD.match(name)]
    listed: Mapping[str, str] = {}
    if SINGLE in present:
        names = [SINGLE]
    elif INDEX in present:
        listed = _index(directory / INDEX, problems)
        names = sorted(set(listed.values()))
    elif numbered:
        total = max(int(match[2]) for match in map(_SHARD.match, numbered) if match)
        width = max(len(match[2]) for match in map(_SHARD.match, numbered) if match)
        names = [f"model-{i:0{width}}-of-{total:0{width}}.safetensors" for i in range(1, total + 1)]
    else:
        names = []
        problems.append(_nothing(present))
    other = [
        name
        for name in present
        if name not in names and name.endswith((".safetensors", ".bin", ".pth", ".pt", ".gguf"))
    ]
    other = [name for name in other if name != "training_args.bin"]
    notes = (f"reads {', '.join(names[:2])}{' ...' if len(names) > 2 else ''}; ignores {shorten(other)}",)
    return _Choice(tuple(directory / name for name in names), listed, notes if other and names else ())


def _nothing(present: list[str]) -> str:
    pickles = [name for name in present if name.endswith((".bin", ".pth", ".pt")) and name != "training_args.bin"]
    others = [name for name in present if name.endswith(".safetensors")]
    if pickles:
        return (
            f"holds its weights only as pickle files ({shorten(pickles)}), which can run code when read; "
            "convert them to safetensors first"
        )
    if others:
        return f"holds {shorten(others)}, expected {SINGLE} or {INDEX}"
    return f"has no weights: expected {SINGLE}, {INDEX} with its shards, or one .gguf file"


def _index(path: Path, problems: list[str]) -> Mapping[str, str]:
    weight_map = _json(path, problems, required=True).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        problems.append(f"{path.name}: weight_map is missing or empty")
        return {}
    bad = [str(shard) for shard in weight_map.values() if not isinstance(shard, str) or Path(shard).name != shard]
    if bad:
        problems.append(f"{path.name}: {shorten(sorted(set(bad)))} are not names of files beside it")
        return {}
    return weight_map


def _read_shard(shard: Path, listed: Mapping[str, str], places: dict[str, Place], problems: list[str]) -> None:
    header = _header(shard, problems)
    if header is None:
        return
    data_start, entries = header
    end = data_start
    found: list[Place] = []
    for name, entry in entries.items():
        place = _place(shard, data_start, name, entry)
        if isinstance(place, str):
            problems.append(f"shard {shard.name}: tensor {name} {place}")
            continue
        found.append(place)
        end = max(end, place.start + place.info.nbytes)
        if name in places:
            problems.append(f"tensor {name} is in both {places[name].shard.name} and {shard.name}")
            continue
        places[name] = place
    nbytes = shard.stat().st_size
    if end > nbytes:
        problems.append(
            f"shard {shard.name} is truncated: it has {nbytes:,} bytes, its header asks for {end:,}, "
            f"{end - nbytes:,} bytes are missing"
        )
    problems += _overlaps(shard, found)
    if listed:
        _compare(shard.name, [place.info.name for place in found], listed, problems)


def _overlaps(shard: Path, found: list[Place]) -> list[str]:
    in_order = sorted((place for place in found if place.info.nbytes), key=lambda place: place.start)
    return [
        f"shard {shard.name}: tensors {one.info.name} and {other.info.name} lie over each other"
        for one, other in itertools.pairwise(in_order)
        if one.start + one.info.nbytes > other.start
    ]


def _compare(shard: str, found: list[str], listed: Mapping[str, str], problems: list[str]) -> None:
    absent = sorted(name for name, place in listed.items() if place == shard and name not in found)
    unlisted = sorted(name for name in found if listed.get(name) != shard)
    if absent:
        problems.append(f"shard {shard} lacks {shorten(absent)}, which {INDEX} places there")
    if unlisted:
        problems.append(f"shard {shard} holds {shorten(unlisted)}, which {INDEX} does not place there")


def _header(shard: Path, problems: list[str]) -> tuple[int, Mapping[str, object]] | None:
    nbytes = shard.stat().st_size
    with shard.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if nbytes < 8 or length > min(nbytes - 8, _HEADER_LIMIT):
            problems.append(
                f"shard {shard.name} is truncated or not safetensors: its header claims {length:,} bytes, "
                f"the file has {nbytes:,}"
            )
            return None
        try:
            header = json.loads(file.read(length).decode("utf-8"))
        except ValueError:
            header = None
    if not isinstance(header, dict):
        problems.append(f"shard {shard.name} has a corrupt header: it is not a JSON object")
        return None
    header.pop("__metadata__", None)
    return 8 + length, header


def _place(shard: Path, data_start: int, name: str, entry: object) -> Place | str:
    """Where one tensor lies, or what is wrong with its entry."""
    if not isinstance(entry, dict):
        return "has a corrupt header entry"
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not _naturals(shape) or not _naturals(offsets) or len(offsets) != 2:
        return "has a corrupt header entry"
    if not isinstance(dtype, str) or dtype not in _WIDTHS:
        return f"has dtype {dtype}, which is unknown (supported: {', '.join(_DTYPES)})"
    count = 1
    for size in shape:
        count *= size
    if offsets[1] - offsets[0] != count * _WIDTHS[dtype]:
        return f"has data_offsets {offsets} for {dtype} {shape}, which needs {count * _WIDTHS[dtype]:,} bytes"
    # a dtype that no weight may have is told by the caller, once it is known which tensors are read
    info = TensorInfo(name, tuple(shape), _DTYPES.get(dtype, torch.uint8), dtype, count * _WIDTHS[dtype])
    return Place(shard, data_start + offsets[0], info)


def _naturals(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _tokenizer(directory: Path, problems: list[str]) -> TokenizerSource:
    config = dict(_json(directory / "tokenizer_config.json", problems, required=False))
    for key, value in _json(directory / "special_tokens_map.json", problems, required=False).items():
        config.setdefault(key, value)
    tokenizer_json, template = directory / "tokenizer.json", directory / "chat_template.jinja"
    return TokenizerSource(
        where=directory,
        tokenizer_json=tokenizer_json if tokenizer_json.is_file() else None,
        tokenizer_config=config,
        chat_template_file=template if template.is_file() else None,
    )


__all__ = ["INDEX", "SINGLE", "ShardReader", "open_directory"]
