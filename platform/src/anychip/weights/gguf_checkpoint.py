"""Open a GGUF file as a checkpoint with Hugging Face names. Knows no device."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from anychip.models.gguf_names import GGUFNames
from anychip.weights.gguf import GGUFFile, GGUFTensor
from anychip.weights.gguf_config import llama3_scaling, names_of, raw_config, token_ids
from anychip.weights.gguf_split import parse_parts
from anychip.weights.names import shorten
from anychip.weights.quantized import BlockFormat, Bytes, decode_rows
from anychip.weights.tensors import Opened, TensorInfo, TokenizerSource, row_range

ROPE_FACTORS = "rope_freqs.weight"
#: key of config.json's rope_scaling -> the tensor that holds it
LONGROPE = {"short_factor": "rope_factors_short.weight", "long_factor": "rope_factors_long.weight"}


class _Place(NamedTuple):
    tensor: GGUFTensor
    permuted_heads: int  # heads whose rows the converter interleaved, 0 for none
    shift: float  # what the converter added


class GGUFReader:
    """Reads tensors of mapped GGUF files and decodes their blocks. Not for several threads."""

    def __init__(self, file: GGUFFile, places: Mapping[str, _Place]) -> None:
        self._file = file
        self._places = places

    def read(self, info: TensorInfo, rows: slice | None) -> torch.Tensor:
        place = self._places[info.name]
        length = info.shape[0] if info.shape else 1
        first, last = row_range(rows, length)
        if info.shape[1:] == () and place.tensor.format.values > 1:
            return self._vector(place.tensor)[first:last]
        raw = self._rows(info, place, first, last)
        values = decode_rows(raw, place.tensor.format).reshape(last - first, *info.shape[1:])
        return values - place.shift if place.shift else values

    def read_blocks(self, info: TensorInfo, rows: slice) -> tuple[Bytes, BlockFormat]:
        place = self._places[info.name]
        first, last = row_range(rows, info.shape[0])
        return np.array(self._rows(info, place, first, last)), place.tensor.format

    def close(self) -> None:
        self._file.close()

    def _rows(self, info: TensorInfo, place: _Place, first: int, last: int) -> Bytes:
        """Raw rows of a matrix in the model's order, [rows, bytes per row]."""
        length = info.shape[0] if info.shape else 1
        row_nbytes = info.nbytes // length if length else 0
        start = place.tensor.start
        if place.permuted_heads:
            raw = place.tensor.mapped.window(start, info.nbytes).reshape(length, row_nbytes)
            return raw[_interleaved_rows(length, place.permuted_heads)[first:last]]
        raw = place.tensor.mapped.window(start + first * row_nbytes, (last - first) * row_nbytes)
        return raw.reshape(last - first, row_nbytes)

    def _vector(self, tensor: GGUFTensor) -> torch.Tensor:
        """One dimension in blocks: a row is part of a block, so all of it is decoded."""
        raw = tensor.mapped.window(tensor.start, tensor.nbytes).reshape(1, tensor.nbytes)
        return decode_rows(raw, tensor.format).reshape(-1)


def _interleaved_rows(rows: int, heads: int) -> npt.NDArray[np.int64]:
    """For each row in the model's order, the row of the file that holds it.

    The model rotates a head's first half against its second; the file has the two members of each pair
    side by side.
    """
    in_file: npt.NDArray[np.int64] = np.arange(rows, dtype=np.int64).reshape(heads, rows // heads // 2, 2)
    return np.swapaxes(in_file, 1, 2).reshape(-1)


def open_gguf(path: Path) -> Opened:
    """Check a file. The header's own faults are raised, everything else is in `problems`.

    Raises:
        CheckpointInvalid: the header can't be read.
    """
    file = parse_parts(path)
    problems = list(file.problems)
    listed = {tensor.name: tensor for tensor in file.tensors}
    if len(listed) < len(file.tensors):
        problems.append("the same tensor is listed twice")
    raw = raw_config(file.metadata, {name: tensor.shape for name, tensor in listed.items()}, problems)
    names = names_of(file.metadata)
    ignored: tuple[str, ...] = ()
    places: dict[str, _Place] = {}
    if names is not None:
        raw["torch_dtype"] = _dtype(listed)
        if ROPE_FACTORS in listed and "rope_theta" in raw:
            ignored = (ROPE_FACTORS,)
            if not problems:
                _apply_rope_factors(listed[ROPE_FACTORS], raw, problems)
        if set(LONGROPE.values()) <= set(listed):
            ignored = (*ignored, *LONGROPE.values())
            _apply_longrope({key: listed[name] for key, name in LONGROPE.items()}, raw, problems)
        weights = {name: tensor for name, tensor in listed.items() if name not in ignored}
        places = _translate(weights, names, raw, problems)
    return Opened(
        problems=problems,
        raw_config=raw,
        generation_config=token_ids(file.metadata, raw.get("vocab_size")),
        tokenizer=TokenizerSource(
            where=path, gguf={k: v for k, v in file.metadata.items() if k.startswith("tokenizer.")}
        ),
        tensors={name: _info(name, place.tensor) for name, place in places.items()},
        reader=GGUFReader(file, places),
        ignored=ignored,
    )


def _translate(
    listed: Mapping[str, GGUFTensor], names: GGUFNames, raw: Mapping[str, object], problems: list[str]
) -> dict[str, _Place]:
    places: dict[str, _Place] = {}
    unknown: list[str] = []
    for name, tensor in listed.items():
        target = names.tensor(name)
        if target is None:
            unknown.append(name)
            continue
        count = raw.get(names.interleaved.get(target.split(".")[-2], ""), 0)
        permuted = count if isinstance(count, int) else 0
        if permuted and (not tensor.shape or tensor.shape[0] % (2 * permuted)):
            problems.append(f"tensor {name} has shape {list(tensor.shape)}, which {permuted} heads do not divide")
            permuted = 0
        shift = names.norm_shift if target.endswith("norm.weight") else 0.0
        places[target] = _Place(tensor, permuted, shift)
    if unknown:
        problems.append(f"{len(unknown)} tensors are not known: {shorten(unknown)}")
    return places


def _info(name: str, tensor: GGUFTensor) -> TensorInfo:
    return TensorInfo(name, tensor.shape, tensor.format.dtype, tensor.format.name, tensor.nbytes)


def _dtype(listed: Mapping[str, GGUFTensor]) -> str | None:
    """The dtype that all matrices are stored in; None where some are quantized."""
    names = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
    kinds = {tensor.format.name for tensor in listed.values() if len(tensor.shape) > 1}
    return names.get(kinds.pop()) if len(kinds) == 1 else None


def _apply_rope_factors(tensor: GGUFTensor, raw: dict[str, object], problems: list[str]) -> None:
    head_dim, theta = raw["head_dim"], raw["rope_theta"]
    assert isinstance(head_dim, int)
    assert isinstance(theta, float)
    if tensor.format.name != "F32" or tensor.shape != (head_dim // 2,) or head_dim < 2:
        problems.append(
            f"tensor {ROPE_FACTORS} is {tensor.format.name} {list(tensor.shape)}, expected F32 [{head_dim // 2}]"
        )
        return
    scaling = llama3_scaling(_numbers(tensor), theta)
    if scaling is None or "rope_scaling" in raw:
        problems.append(f"tensor {ROPE_FACTORS} holds a rope scaling other than llama3, which is not supported")
    elif scaling["rope_type"] != "default":
        raw["rope_scaling"] = scaling


def _apply_longrope(tensors: Mapping[str, GGUFTensor], raw: dict[str, object], problems: list[str]) -> None:
    """The rest of the scaling stands in the metadata."""
    wrong = [one.name for one in tensors.values() if one.format.name != "F32" or len(one.shape) != 1]
    if wrong:
        problems.append(f"tensors {', '.join(wrong)} are not lists of F32")
        return
    told = raw.get("rope_scaling")
    lists = {key: _numbers(tensor) for key, tensor in tensors.items()}
    raw["rope_scaling"] = {**(told if isinstance(told, dict) else {}), "rope_type": "longrope", **lists}


def _numbers(tensor: GGUFTensor) -> list[float]:
    raw = tensor.mapped.window(tensor.start, tensor.nbytes).reshape(1, tensor.nbytes)
    numbers: list[float] = decode_rows(raw, tensor.format).reshape(-1).tolist()
    return numbers


__all__ = ["GGUFReader", "open_gguf"]
