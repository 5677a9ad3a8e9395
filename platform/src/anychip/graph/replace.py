"""Step 2: each op is bound to a kernel of the backend or its fallback. Knows facts; rewrites nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import fx

from anychip.graph.ir import FACTS, RESOLUTION, ModelGraph, argument, plain_arguments, shape_of
from anychip_sdk.errors import KernelMissing
from anychip_sdk.ops import Op
from anychip_sdk.ops.facts import product_facts
from anychip_sdk.registry import Fact, OpKey, OpRegistry, Override, Rejection, Resolution, dtype_name


@dataclass(frozen=True)
class Binding:
    """What ops are resolved against: a backend's registry, the plan's dtype and the facts of model and pool."""

    registry: OpRegistry
    dtype: torch.dtype
    facts: Mapping[str, Fact]  #: heads, kv_heads, head_dim, page_size, kv_dtype ...
    overrides: tuple[Override, ...] = ()
    fallback_allowed: bool = True

    def resolve(self, op: Op, facts: Mapping[str, Fact]) -> Resolution | None:
        """The kernel of an op, or None where every candidate is rejected."""
        return self.registry.resolve(OpKey(op.name, op.version, self.dtype), facts, self.overrides)

    def compute_dtype(self, op: str) -> torch.dtype:
        """What the recipe has an op computed in: the graph's dtype unless an override says otherwise."""
        said = [one.compute_dtype for one in self.overrides if one.op == op and one.dtype in (None, self.dtype)]
        return next((dtype for dtype in reversed(said) if dtype is not None), self.dtype)


def replace(model: ModelGraph, binding: Binding) -> ModelGraph:
    """Bind every op node.

    Raises:
        KernelMissing: for all ops at once that no kernel fits, or that need the fallback where it is forbidden.
    """
    problems: dict[str, str] = {}
    for node, op in model.op_nodes():
        problem = bind(model, node, op, binding)
        if problem:
            problems.setdefault(op.name, problem)
    refuse(problems)
    return model


def refuse(problems: Mapping[str, str]) -> None:
    """Raise what is wrong with binding, op by op, if anything is."""
    if problems:
        raise KernelMissing(
            "\n".join(problems.values()),
            hint="allow the fallback (ops.fallback: warn), drop the override, or use a backend that has the kernel",
        )


def bind(model: ModelGraph, node: fx.Node, op: Op, binding: Binding) -> str | None:
    """Bind one node; returns what is wrong, if anything is."""
    facts = node.meta[FACTS] = node_facts(model, node, op, binding)
    found = binding.resolve(op, facts)
    return settle(node.meta, op, found, facts, binding)


def settle(
    meta: dict[str, object],
    op: Op,
    found: Resolution | None,
    facts: Mapping[str, Fact],
    binding: Binding,
) -> str | None:
    """Note a resolution, or say why it can't be accepted."""
    if found is None:
        key = OpKey(op.name, op.version, binding.dtype)
        rejected = binding.registry.reject_all(key, facts, binding.overrides)
        return f"op {op.name} ({dtype_name(binding.dtype)}): no kernel fits: {_reasons(rejected)}"
    meta[RESOLUTION] = found
    if found.is_fallback and not binding.fallback_allowed:
        reasons = _reasons(found.rejected) or found.reason
        return f"op {op.name} ({dtype_name(binding.dtype)}): needs the fallback, which ops.fallback forbids: {reasons}"
    return None


def node_facts(model: ModelGraph, node: fx.Node, op: Op, binding: Binding) -> dict[str, Fact]:
    """Everything that a kernel may require: the model's facts, and the shapes of the node's own parameters.

    A product has its weight's facts; plain arguments (eps, scale, window ...) go by their names.
    """
    facts = {**binding.facts, "dtype": dtype_name(binding.compute_dtype(op.name)), **plain_arguments(node, op)}
    given = zip(op.weights, (argument(node, op, name) for name in op.weights), strict=True)
    shapes = {name: shape_of(model, value) for name, value in given if isinstance(value, fx.Node)}
    return {**facts, **product_facts(op, shapes)}


def _reasons(rejected: Sequence[Rejection]) -> str:
    return "; ".join(f"{one.provider}/{one.kernel}: {one.reason}" for one in rejected)


__all__ = ["Binding", "bind", "node_facts", "refuse", "replace", "settle"]
