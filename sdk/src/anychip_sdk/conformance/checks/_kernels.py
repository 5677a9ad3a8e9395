"""Run a backend's kernels on its device with random arguments, for checks of memory. Knows no op's meaning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from anychip_sdk.conformance.context import Context
from anychip_sdk.conformance.trial.trials import facts_of
from anychip_sdk.device import Device
from anychip_sdk.ops.base import CATALOGUE
from anychip_sdk.registry import REFERENCE, Kernel, with_prepared
from anychip_sdk.step import Step
from anychip_sdk.testing.cases import DIMENSIONS, random_case


def own_kernels(context: Context) -> Iterator[tuple[Kernel, Sequence[Any]]]:
    """The backend's kernels of claimed ops that take plain weights, each with arguments on the host."""
    for op, names in context.claims.ops.items():
        dtype = getattr(torch, names[0]) if names else torch.float32
        for kernel in context.backend.ops.kernels(op) if op in CATALOGUE else ():
            if kernel.provider == REFERENCE or dtype not in kernel.dtypes or kernel.prepares_weight:
                continue
            if _takes(kernel, DIMENSIONS):
                yield kernel, random_case(op, dtype, context.seed % (1 << 31))


def run_on(device: Device, kernel: Kernel, args: Sequence[Any]) -> list[torch.Tensor]:
    """The kernel's results on the host, for copies of the arguments on the device."""
    floats = [one.dtype for one in args if isinstance(one, torch.Tensor) and one.dtype in kernel.dtypes]
    given = [_moved(value, device.torch_device) for value in args]
    facts = facts_of(CATALOGUE[kernel.op], given, floats[0] if floats else kernel.dtypes[0], DIMENSIONS)
    answer = kernel.function(*with_prepared(kernel, given, facts))
    device.synchronize()
    results = answer if isinstance(answer, tuple) else (answer,)
    return [result.cpu().clone() for result in results]


def _takes(kernel: Kernel, facts: Mapping[str, int]) -> bool:
    return all(name not in facts or need.test(facts[name]) for name, need in kernel.requires.items())


def _moved(value: Any, where: torch.device) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone().to(where)
    return value.to(where) if isinstance(value, Step) else value


__all__ = ["own_kernels", "run_on"]
