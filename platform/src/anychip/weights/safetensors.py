"""Open a Hugging Face directory of safetensors shards. Knows shards, indexes and headers; knows no model's names.

Headers are read here rather than through the safetensors library, so that every problem of every shard is told
at once, with the shard's name and the missing bytes, before anything is mapped.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch

from anychip.weights.files import load_json, not_a_file
from anychip.weights.mapped import MappedFile, unreadable
from anychip.weights.names import shorten
from anychip.weights.quantized import BlockFormat, Bytes
from anychip.weights.safetensors_header import Place, read_header
from anychip.weights.tensors import Opened, TensorInfo, TokenizerSource, row_range

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_SHARD = re.compile(r"^model-(\d+)-of-(\d+)\.safetensors$", re.ASCII)
_MAX_SHARDS = 10_000


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
    if not required and not path.exists() and not path.is_symlink():
        return {}
    return load_json(path, problems)


class _Choice(NamedTuple):
    shards: tuple[Path, ...]
    listed: Mapping[str, str]  # tensor -> shard, from the index; empty without one
    notes: tuple[str, ...]


def _choose(directory: Path, problems: list[str]) -> _Choice:
    """One set of weights out of what the directory holds: the single file, else the index, else numbered shards."""
    names = sorted(path.name for path in directory.iterdir())
    # a link that leads nowhere counts, so that it is told where it is wanted
    present = [name for name in names if (directory / name).is_file() or (directory / name).is_symlink()]
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
        names = [f"model-{i:0{width}}-of-{total:0{width}}.safetensors" for i in range(1, min(total, _MAX_SHARDS) + 1)]
    else:
        names = []
        problems.append(_nothing(present))
    if len(names) >= _MAX_SHARDS:
        problems.append(f"has {len(names):,} shards or more, expected fewer than {_MAX_SHARDS:,}")
        return _Choice((), listed, ())
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
    found = read_header(shard, problems)
    if found is None:
        return
    for place in found:
        name = place.info.name
        if name in places:
            problems.append(f"tensor {name} is in both {places[name].shard.name} and {shard.name}")
            continue
        places[name] = place
    if listed:
        _compare(shard.name, [place.info.name for place in found], listed, problems)


def _compare(shard: str, found: list[str], listed: Mapping[str, str], problems: list[str]) -> None:
    present = frozenset(found)
    absent = sorted(name for name, place in listed.items() if place == shard and name not in present)
    unlisted = sorted(name for name in found if listed.get(name) != shard)
    if absent:
        problems.append(f"shard {shard} lacks {shorten(absent)}, which {INDEX} places there")
    if unlisted:
        problems.append(f"shard {shard} holds {shorten(unlisted)}, which {INDEX} does not place there")


def _tokenizer(directory: Path, problems: list[str]) -> TokenizerSource:
    config = dict(_json(directory / "tokenizer_config.json", problems, required=False))
    for key, value in _json(directory / "special_tokens_map.json", problems, required=False).items():
        config.setdefault(key, value)
    found: dict[str, Path | None] = {}
    for name in ("tokenizer.json", "chat_template.jinja"):
        reason = not_a_file(directory / name)
        found[name] = None if reason else directory / name
        if reason not in (None, "is missing"):
            problems.append(f"{name} {reason}")
    return TokenizerSource(
        where=directory,
        tokenizer_json=found["tokenizer.json"],
        tokenizer_config=config,
        chat_template_file=found["chat_template.jinja"],
    )


__all__ = ["INDEX", "SINGLE", "ShardReader", "open_directory"]
