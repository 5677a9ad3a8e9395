"""Stream a checkpoint to the device, one tensor at a time. Knows which parameter is made of which tensors; knows no op.

Each source tensor is read once, in slices, so that the host never holds more than one slice of one tensor beside the
file's own pages.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch

from anychip.weights.checkpoint import Checkpoint
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
    """What is to be loaded: a parameter of the graph and the checkpoint's tensors that it joins along dim 0."""

    name: str
    shape: tuple[int, ...]
    sources: tuple[str, ...]
    scheme: Scheme | None = None  #: None: in the model's dtype

    def nbytes(self, dtype: torch.dtype) -> int:
        if self.scheme is None:
            return torch.Size(self.shape).numel() * dtype.itemsize
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
    plain, quantized = Counter[str](), Counter[str]()
    for parameter in parameters:
        (plain if parameter.scheme is None else quantized).update(parameter.sources)
    wanted = plain | quantized
    problems = [f"tensor {name} is missing" for name in wanted if name not in checkpoint.tensors]
    problems += [f"tensor {name} is not used by the model" for name in checkpoint.tensors if name not in wanted]
    problems += [f"tensor {name} is read {times} times" for name, times in wanted.items() if times > 1]
    problems += checkpoint.differing_copies()
    if problems:
        raise CheckpointInvalid(f"checkpoint {checkpoint.path}:\n" + "\n".join(f"  {problem}" for problem in problems))


def load(
    parameter: Parameter, checkpoint: Checkpoint, device: Device, dtype: torch.dtype, progress: Progress, shard: Shard
) -> torch.Tensor:
    """One parameter on the device, in `dtype`; `progress` gets the bytes of this parameter that are done."""
    _check_shard(shard)
    target = _allocated(device, parameter.shape, dtype)
    for source, rows, at in _slices(parameter, checkpoint, SLICE_BYTES):
        piece = checkpoint.read(source, rows)
        device.copy(target[at], piece.to(dtype))
        progress(source, target[: at.stop].nbytes, target.nbytes)
    return target


def load_quantized(
    parameter: Parameter, checkpoint: Checkpoint, device: Device, progress: Progress, shard: Shard
) -> Quantized:
    """The parameter's scheme on the device, quantized slice by slice; a file's own integers are never widened."""
    _check_shard(shard)
    scheme = parameter.scheme
    assert scheme is not None
    targets = {part.name: _allocated(device, part.shape, part.dtype) for part in scheme.parts(*parameter.shape)}
    whole = sum(target.nbytes for target in targets.values())
    error = size = 0.0
    for source, rows, at in _slices(parameter, checkpoint, SLICE_BYTES // QUANTIZED_SLICES):
        if scheme.is_stored:
            pieces = stored_parts(*checkpoint.read_blocks(source, rows), scheme)
        else:
            values = checkpoint.read(source, rows).float()
            pieces = quantize(values, scheme)
            error += float((dequantized(pieces, scheme) - values).square_().sum())
            size += float(values.square().sum())
        for name, piece in pieces.items():
            device.copy(targets[name][at], piece)
        progress(source, sum(target[: at.stop].nbytes for target in targets.values()), whole)
    if not math.isfinite(error):
        sources = ", ".join(parameter.sources)
        raise CheckpointInvalid(f"checkpoint {checkpoint.path}: {sources}: too large for {scheme}, or not a number")
    return Quantized(targets, math.sqrt(error / size) if size else 0.0)


def _check_shard(shard: Shard) -> None:
    if shard.size != 1:
        message = f"rank {shard.rank} of {shard.size}: tensor parallelism is not built yet; use one device"
        raise CheckpointInvalid(message)


def _allocated(device: Device, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return device.alloc(torch.Size(shape).numel() * dtype.itemsize).view(dtype).view(shape)


def _slices(parameter: Parameter, checkpoint: Checkpoint, nbytes: int) -> Iterator[tuple[str, slice, slice]]:
    """Source, rows of it that take so many bytes in float32, and where they belong in the parameter."""
    first = 0
    for source in parameter.sources:
        rows = checkpoint.tensors[source].shape[0]
        step = max(1, nbytes * rows // max(1, 4 * checkpoint_elements(checkpoint, source)))
        for start in range(0, rows, step):
            stop = min(rows, start + step)
            yield source, slice(start, stop), slice(first + start, first + stop)
        first += rows


def checkpoint_elements(checkpoint: Checkpoint, name: str) -> int:
    return int(torch.Size(checkpoint.tensors[name].shape).numel())


def total_bytes(parameters: Mapping[str, Parameter], dtype: torch.dtype) -> int:
    return sum(one.nbytes(dtype) for one in parameters.values())


__all__ = ["Parameter", "Progress", "Quantized", "Shard", "check_complete", "load", "load_quantized", "total_bytes"]
