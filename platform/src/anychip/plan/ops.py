"""The operator table: which ops a model needs on a backend, how often, from whom and why. Knows the registry."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from anychip.graph.ir import RESOLUTION, ModelGraph, resolution
from anychip.graph.replace import Binding, settle
from anychip.plan.plan import OpRow
from anychip_sdk.errors import KernelMissing
from anychip_sdk.ops import CATALOGUE
from anychip_sdk.registry import OpKey, Resolution

#: Ops that the engine runs outside the model's graph; sampling is in float32 whatever the model's dtype.
SAMPLING_OPS = ("argmax", "sample", "apply_penalties", "apply_logit_bias")


def bind_engine_ops(binding: Binding) -> dict[str, Resolution]:
    """Kernels for sampling.

    Raises:
        KernelMissing: for all of them at once.
    """
    found: dict[str, Resolution] = {}
    problems = []
    for name in SAMPLING_OPS:
        op = CATALOGUE[name]
        key = OpKey(name, op.version, torch.float32)
        meta: dict[str, object] = {}
        resolved = binding.registry.resolve(key, binding.facts, binding.overrides)
        problem = settle(meta, op, resolved, binding.facts, binding)
        bound = meta.get(RESOLUTION)
        if problem is None and isinstance(bound, Resolution):
            found[name] = bound
        elif problem is not None:
            problems.append(problem)
    if problems:
        raise KernelMissing("\n".join(problems), hint="set ops.fallback to warn, or use a backend that has the kernels")
    return found


def op_table(model: ModelGraph, engine_ops: Mapping[str, Resolution]) -> tuple[OpRow, ...]:
    """A row per op and kernel, in order of first use; the engine's own ops last."""
    counts: dict[tuple[str, str, str], int] = {}
    bound: dict[tuple[str, str, str], Resolution] = {}
    resolutions = [resolution(node) for node, _ in model.op_nodes()]
    for one in (*resolutions, *engine_ops.values()):
        key = (one.key.name, one.provider, one.kernel.name)
        counts[key] = counts.get(key, 0) + 1
        bound.setdefault(key, one)
    return tuple(_row(one, counts[key]) for key, one in bound.items())


def _row(bound: Resolution, count: int) -> OpRow:
    return OpRow(
        bound.key.name,
        bound.compute_dtype or bound.key.dtype,
        count,
        bound.provider,
        bound.kernel.name,
        bound.reason,
        bound.rejected,
        bound.is_fallback,
    )


__all__ = ["SAMPLING_OPS", "bind_engine_ops", "op_table"]
