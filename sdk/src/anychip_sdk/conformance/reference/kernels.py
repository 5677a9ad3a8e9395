"""The reference chip's kernels: sums in float64, rounded once. Knows the catalogue; knows no device.

A library sums float32 products in an order that depends on addresses, threads and the number of rows, and that shows
in the last bits. Of a sum in float64 it does not.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from anychip_sdk.ops import CATALOGUE
from anychip_sdk.ops.base import Op
from anychip_sdk.registry import KernelFunction
from anychip_sdk.testing.bounds import result_dtype
from anychip_sdk.testing.check import results_of, widened


@cache
def reference_kernel(name: str) -> KernelFunction:
    """The op's reference; where it is a long sum, rounded from float64 to the dtypes of the schema."""
    op = CATALOGUE[name]
    is_long_sum = op.error.depth is not None or (op.error.kind == "accumulated" and bool(op.weights))
    return _rounded_once(op) if is_long_sum else op.reference


def _rounded_once(op: Op) -> KernelFunction:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        given = op.signature.bind(*args, **kwargs)
        given.apply_defaults()
        used = {name: widened(value) for name, value in given.arguments.items()}
        results = results_of(op.reference(**used))
        for name in op.mutated:
            given.arguments[name].copy_(used[name])
        dtype = next(v.dtype for a, v in zip(op.args, given.args, strict=True) if a.dtype == "T" and _is_floating(v))
        found = tuple(
            given.arguments.get(arg.name) if arg.name in op.mutated else value.to(result_dtype(op, arg, dtype))
            for arg, value in zip(op.returns, results, strict=True)
        )
        return found if len(found) > 1 else found[0]

    return kernel


def _is_floating(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


__all__ = ["reference_kernel"]
