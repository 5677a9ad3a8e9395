"""Stream a checkpoint to the device, one tensor at a time. Knows which parameter is made of which tensors; knows no op.

Each source tensor is read once, in slices, so that the host never holds more than one slice of one tensor beside the
file's own pages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch

from anychip.weights.checkpoint import Checkpoint
from anychip_sdk.device import Device
from anychip_sdk.errors import CheckpointInvalid

SLICE_BYTES = 64 << 20

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


def check_complete(parameters: Iterable[Parameter], checkpoint: Checkpoint) -> None:
    """Every tensor of the checkpoint is read exactly once, and nothing is read that it lacks.

    Raises:
        CheckpointInvalid: with all tensors that are missing, left over or read twice.
    """
    wanted = Counter(source for parameter in parameters for source in parameter.sources)
    problems = [f"tensor {name} is missing" for name in wanted if name not in checkpoint.tensors]
    problems += [f"tensor {name} is not used by the model" for name in checkpoint.tensors if name not in wanted]
    problems += [f"tensor {name} is read {times} times" for name, times in wanted.items() if times > 1]
    if problems:
        raise CheckpointInvalid(f"checkpoint {checkpoint.path}:\n" + "\n".join(f"  {problem}" for problem in problems))


def load(
    parameter: Parameter, checkpoint: Checkpoint, device: Device, dtype: torch.dtype, progress: Progress, shard: Shard
) -> torch.Tensor:
    """One parameter on the device, in `dtype`; `progress` gets the bytes of this parameter that are done."""
    if shard.size != 1:
        message = f"rank {shard.rank} of {shard.size}: tensor parallelism is not built yet; use one device"
        raise CheckpointInvalid(message)
    elements = torch.Size(parameter.shape).numel()
    target = device.alloc(elements * dtype.itemsize).view(dtype).view(parameter.shape)
    row = 0
    for source in parameter.sources:
        rows = checkpoint.tensors[source].shape[0]
        step = max(1, SLICE_BYTES * rows // max(1, 4 * checkpoint_elements(checkpoint, source)))
        for start in range(0, rows, step):
            stop = min(rows, start + step)
            piece = checkpoint.read(source, slice(start, stop))
            device.copy(target[row + start : row + stop], piece.to(dtype))
            progress(source, target[: row + stop].nbytes, target.nbytes)
        row += rows
    return target


def checkpoint_elements(checkpoint: Checkpoint, name: str) -> int:
    return int(torch.Size(checkpoint.tensors[name].shape).numel())


def total_bytes(parameters: Mapping[str, Parameter], dtype: torch.dtype) -> int:
    return sum(torch.Size(one.shape).numel() * dtype.itemsize for one in parameters.values())


__all__ = ["Parameter", "Progress", "Shard", "check_complete", "load", "total_bytes"]
