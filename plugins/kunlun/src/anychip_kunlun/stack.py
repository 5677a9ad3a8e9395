"""Everything of the vendor's stack that the backend touches, as one object. Knows no op, no chip and no emulator."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import subprocess
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

#: the longest that a tool may take to answer
TOOL_TIMEOUT_S = 20.0
#: the most that is copied from the host without waiting; weights are more
STAGED_BYTES = 4 << 20


@dataclass(frozen=True)
class Stack:
    """The seams of the stack. The vendor's torch presents the chip as CUDA, so `accelerator` is torch.cuda there.

    Attributes:
        accelerator: a namespace with the names and behaviour of torch.cuda.
        device_type: the type of torch device on which tensors live.
        root: where `dev` and `proc` are.
        environ: the process's environment variables.
        run: runs a tool and returns its output; raises like subprocess (FileNotFoundError, CalledProcessError).
        has_module: whether a vendor module could be loaded; imports nothing.
        load: imports a vendor module; raises ModuleNotFoundError.
        version: the version of a vendor distribution; None: not installed.
        empty: memory of `dtype` on the device with that index; the only way in which buffers are allocated.
        copy: queues dst <- src on a stream of the accelerator, or on its default stream (None).
        delay: keeps a stream busy for so many seconds.
        linear: x @ weight.T + bias as the stack's torch computes it.
        dispatch_dump: torch's table of an operator's kernels, as text.
        emulated: only for words; nothing branches on it.
    """

    accelerator: Any
    device_type: str
    root: Path
    environ: MutableMapping[str, str]
    run: Callable[[Sequence[str]], str]
    has_module: Callable[[str], bool]
    load: Callable[[str], ModuleType]
    version: Callable[[str], str | None]
    empty: Callable[[Sequence[int], torch.dtype, int], torch.Tensor]
    copy: Callable[[torch.Tensor, torch.Tensor, Any], None]
    delay: Callable[[Any, float], None]
    linear: Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]
    dispatch_dump: Callable[[str], str]
    emulated: bool = False


def real_stack() -> Stack:
    """The stack of this machine. Imports nothing of the vendor's and touches no device."""
    return Stack(
        accelerator=torch.cuda,
        device_type="cuda",
        root=Path("/"),
        environ=os.environ,
        run=_run,
        has_module=_has_module,
        load=importlib.import_module,
        version=_version,
        empty=_empty,
        copy=_copy,
        delay=_delay,
        linear=torch.nn.functional.linear,
        dispatch_dump=torch._C._dispatch_dump,
    )


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=True)
    return done.stdout


def _has_module(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _empty(shape: Sequence[int], dtype: torch.dtype, index: int) -> torch.Tensor:
    return torch.empty(tuple(shape), dtype=dtype, device=torch.device("cuda", index))


def _copy(dst: torch.Tensor, src: torch.Tensor, stream: Any) -> None:
    """A copy to the device is queued; the host's memory is no longer in use when the call returns.

    What a step needs of the host, which is small, goes through page-locked memory, which torch keeps until the copy is
    done: from other memory torch waits until the device is idle, and with it for the step that runs.
    """
    is_from_host = dst.is_cuda and not src.is_cuda
    is_staged = is_from_host and src.nbytes <= STAGED_BYTES and src.is_contiguous() and src.dtype == dst.dtype
    if is_staged:
        src = src.pin_memory()
    deferred = is_staged or (dst.is_cuda and src.is_cuda)
    with torch.cuda.stream(stream):  # None leaves the current stream as it is
        dst.copy_(src, non_blocking=deferred)


def _delay(stream: Any, seconds: float) -> None:
    """Products of matrices until so much time must have passed; the chip has no sleeping kernel of its own."""
    square = torch.zeros((4096, 4096), dtype=torch.float16, device=stream.device)
    with torch.cuda.stream(stream):
        # 4096^3 products take half a millisecond at the chip's best, 252 TFLOP/s
        for _ in range(max(1, round(seconds / 0.0005))):
            torch.mm(square, square)


__all__ = ["Stack", "real_stack"]
