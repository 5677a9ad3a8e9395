"""Stream a checkpoint to the device, one tensor at a time. Knows which parameter is made of which tensors; knows no op.

Each source tensor is read once, in slices, so that the host never holds more than one slice of one tensor beside the
file's own pages.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch

from anychip.models.source import Source
from anychip.weights.checkpoint import Checkpoint
from anychip.weights.pieces import coverage, part_of, pieces, read, read_blocks
from anychip.weights.quantize import dequantized, quantize, stored_parts
from anychip.weights.schemes import Scheme
from anychip_sdk.device import Device
from anychip_sdk.errors import CheckpointInvalid

SLICE_BYTES = 64 << 20
#: quantizing needs several float32 copies of a slice, so its slices are smaller by this
QUANTIZED_SLICES = 8

Progress = Callable[[str, int, int], None]  #: what is being loaded, bytes done, bytes in all


@dataclass(frozen=True)
class Shard:
    """Which part of every sharded tensor this worker holds."""

    rank: int = 0
    size: int = 1


@dataclass(frozen=True)
class Parameter:
    """What is to be loaded: a parameter of the graph, and where its numbers stand, one source after the other."""

    name: str
    shape: tuple[int, ...]
    sources: tuple[Source, ...]
    scheme: Scheme | None = None  #: None: as numbers
    dtype: torch.dtype | None = None  #: None: the model's

    def nbytes(self, dtype: torch.dtype) -> int:
        if self.scheme is None:
            return torch.Size(self.shape).numel() * (self.dtype or dtype).itemsize
        parts = self.scheme.parts(*self.shape)
        return sum(torch.Size(part.shape).numel() * part.dtype.itemsize for part in parts)


@dataclass(frozen=True)
class Quantized:
    """A matrix of integers on the device, and how far they are from the checkpoint's numbers."""

    parts: Mapping[str, torch.Tensor]  #: by the names of the op's arguments
    error: float  #: root mean square, relative to the numbers'; 0 where they are as stored


def check_complete(parameters: Iterable[Parameter], checkpoint: Checkpoint) -> None:
    """Every tensor of the checkpoint is read into exactly one parameter, and nothing is read that it lacks.

    A parameter may be there twice, plain and quantized: a table of tied embeddings is.

    Raises:
        CheckpointInvalid: with all tensors that are missing, left over or read twice.
    """
    readers: dict[str, tuple[list[Source], list[Source]]] = defaultdict(lambda: ([], []))
    problems = []
    for parameter in parameters:
        for source in parameter.sources:
            readers[source.tensor][parameter.scheme is not None].append(source)
        given, wanted = sum(one.elements for one in parameter.sources), math.prod(parameter.shape)
        if given != wanted:
            problems.append(f"parameter {parameter.name} has {wanted} numbers, its tensors give {given}")
    problems += [f"tensor {name} is missing" for name in readers if name not in checkpoint.tensors]
    problems += [f"tensor {name} is not used by the model" for name in checkpoint.tensors if name not in readers]
    read_by = {name: coverage(*sources) for name, sources in readers.items()}
    problems += [f"tensor {name} is used only in part" for name, one in read_by.items() if not one.is_whole]
    problems += [f"tensor {name} is read more than once" for name, one in read_by.items() if one.is_repeated]
    problems += checkpoint.differing_copies()
    if problems:
        raise CheckpointInvalid(f"checkpoint {checkpoint.path}:\n" + "\n".join(f"  {problem}" for problem in problems))


def load(
    parameter: Parameter, checkpoint: Checkpoint, device: Device, dtype: torch.dtype, progress: Progress, shard: Shard
) -> torch.Tensor:
    """One parameter on the device, in its own dtype or `dtype`; `progress` gets the bytes of it that are done."""
    _check_shard(shard)
    target = _allocated(device, parameter.shape, parameter.dtype or dtype)
    flat = target.view(-1)
    for piece in pieces(parameter.sources, SLICE_BYTES):
        values = read(checkpoint, piece).to(target.dtype)
        stop = piece.first + piece.elements
        device.copy(flat[piece.first : stop], values.reshape(-1))
        progress(piece.source.tensor, flat[:stop].nbytes, target.nbytes)
    return target


def load_quantized(
    parameter: Parameter, checkpoint: Checkpoint, device: Device, progress: Progress, shard: Shard
) -> Quantized:
    """The parameter's scheme on the device, quantized slice by slice; a file's own integers are never widened."""
    _check_shard(shard)
    scheme = parameter.scheme
    assert scheme is not None
    targets = {part.name: _allocated(device, part.shape, part.dtype) for part in scheme.parts(*parameter.shape)}
    by_rows = {name: target.flatten(0, -2) for name, target in targets.items()}
    whole = sum(target.nbytes for target in targets.values())
    error = size = 0.0
    for piece in pieces(parameter.sources, SLICE_BYTES // QUANTIZED_SLICES):
        if scheme.is_stored:
            parts = stored_parts(*read_blocks(checkpoint, piece), scheme)
        else:
            values = read(checkpoint, piece).float()
            parts = quantize(values, scheme)
            error += float((dequantized(parts, scheme) - values).square_().sum())
            size += float(values.square().sum())
        first = piece.first // parameter.shape[-1]
        stop = first + piece.shape[0]
        for name, part in parts.items():
            device.copy(by_rows[name][first:stop], part)
        progress(piece.source.tensor, sum(target[:stop].nbytes for target in by_rows.values()), whole)
    if not math.isfinite(error):
        sources = ", ".join(dict.fromkeys(source.tensor for source in parameter.sources))
        raise CheckpointInvalid(f"checkpoint {checkpoint.path}: {sources}: too large for {scheme}, or not a number")
    return Quantized(targets, math.sqrt(error / size) if size else 0.0)


def slices_of(parameter: Parameter) -> Iterator[Parameter]:
    """Of a stack [experts, rows, columns] each expert's part, as a stack of one."""
    experts, rows, columns = parameter.shape
    for expert in range(experts):
        sources = tuple(part_of(parameter.sources, range(expert * rows, (expert + 1) * rows)))
        yield replace(parameter, shape=(1, rows, columns), sources=sources)


def _check_shard(shard: Shard) -> None:
    if shard.size != 1:
        message = f"rank {shard.rank} of {shard.size}: tensor parallelism is not built yet; use one device"
        raise CheckpointInvalid(message)


def _allocated(device: Device, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return device.alloc(torch.Size(shape).numel() * dtype.itemsize).view(dtype).view(shape)


def total_bytes(parameters: Mapping[str, Parameter], dtype: torch.dtype) -> int:
    return sum(one.nbytes(dtype) for one in parameters.values())


__all__ = [
    "Parameter",
    "Progress",
    "Quantized",
    "Shard",
    "check_complete",
    "load",
    "load_quantized",
    "slices_of",
    "total_bytes",
]
