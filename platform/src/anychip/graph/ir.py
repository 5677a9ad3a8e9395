"""The graph that the steps hand on: torch.fx nodes over catalogue ops, and the weights they read. Knows no kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import fx

from anychip.models.source import Source
from anychip.models.state import Table
from anychip.weights.schemes import Part, Scheme
from anychip_sdk.ops import Op
from anychip_sdk.ops.facts import argument_facts
from anychip_sdk.registry import Fact, Resolution
from anychip_sdk.state import StateGroup

RESOLUTION = "resolution"  # keys of node.meta
FACTS = "facts"


@dataclass(frozen=True)
class QuantizedPart:
    """Which tensor of which quantized matrix a parameter is; `shape` is the matrix's own."""

    matrix: str
    shape: tuple[int, ...]
    scheme: Scheme
    part: Part


@dataclass(frozen=True)
class WeightSpec:
    """One parameter of the graph, and the pieces of the checkpoint's tensors that it joins.

    Attributes:
        quantized: None: held as it is.
        dtype: that the op which reads it wants, whatever the model's; None: the model's.
    """

    name: str
    shape: tuple[int, ...]
    sources: tuple[Source, ...]
    quantized: QuantizedPart | None = None
    dtype: torch.dtype | None = None

    @property
    def elements(self) -> int:
        return int(torch.Size(self.shape).numel())

    def itemsize(self, dtype: torch.dtype) -> int:
        """Bytes of an element where the model's dtype is `dtype`."""
        return self.held_dtype(dtype).itemsize

    def held_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """Of its elements where the model's dtype is `dtype`."""
        return self.quantized.part.dtype if self.quantized else self.dtype or dtype


class StatePlace(NamedTuple):
    """Which tensor of the pool a buffer is."""

    group: int
    layer: int
    tensor: int


@dataclass
class ModelGraph:
    """A graph under rewriting. Its one placeholder is the step.

    Attributes:
        graph: nodes are the placeholder, get_attr, catalogue ops, views (methods and getitem) and the output;
            before `expand` also calls of modules.
        weights: get_attr target -> spec, for parameters.
        groups: the states that the model keeps.
        states: get_attr target -> the state tensor that the engine binds to it.
        tables: get_attr target -> the module that computes it.
    """

    graph: fx.Graph
    root: torch.nn.Module
    weights: dict[str, WeightSpec] = field(default_factory=dict)
    groups: tuple[StateGroup, ...] = ()
    states: Mapping[str, StatePlace] = field(default_factory=dict)
    tables: Mapping[str, Table] = field(default_factory=dict)

    def with_graph(self, graph: fx.Graph) -> ModelGraph:
        """Another graph over the same parameters and buffers."""
        return replace(self, graph=graph, weights=dict(self.weights))

    def op_nodes(self) -> Iterator[tuple[fx.Node, Op]]:
        """The nodes that compute, with their ops, in order."""
        for node in self.graph.nodes:
            if node.op == "call_function" and isinstance(node.target, Op):
                yield node, node.target

    def used_weights(self) -> dict[str, WeightSpec]:
        """The weights that the graph still reads, in order of first use."""
        used = {}
        for node in self.graph.nodes:
            if node.op == "get_attr" and node.target in self.weights and node.users:
                used[str(node.target)] = self.weights[str(node.target)]
        return used


def resolution(node: fx.Node) -> Resolution:
    """The kernel that `replace` or `fold` bound to an op node."""
    bound = node.meta[RESOLUTION]
    assert isinstance(bound, Resolution)
    return bound


def argument(node: fx.Node, op: Op, name: str) -> Any:
    """An op node's argument by the schema's name; nodes hold all arguments positionally."""
    return node.args[[arg.name for arg in op.args].index(name)]


def plain_arguments(node: fx.Node, op: Op) -> dict[str, Fact]:
    """An op node's numbers by the schema's names, and which optional tensors it has: `argument_facts` of its values."""
    return argument_facts(op, node.args)


def as_text(model: ModelGraph) -> str:
    """The graph, a node per line, with providers where they are bound."""
    lines = []
    for node in model.graph.nodes:
        if node.op == "get_attr":
            continue
        lines.append(_line(node))
    return "\n".join(lines)


def _line(node: fx.Node) -> str:
    if node.op == "placeholder":
        return f"{node.name} = input"
    if node.op == "output":
        return f"return {_value(node.args[0])}"
    values = ", ".join(_value(arg) for arg in node.args)
    if node.op == "call_module":
        return f"{node.name} = {node.target}({values})"
    if node.op == "call_method":
        owner, _, rest = values.partition(", ")
        return f"{node.name} = {owner}.{node.target}({rest})"
    name = getattr(node.target, "__name__", str(node.target))
    bound: Resolution | None = node.meta.get(RESOLUTION)
    suffix = "" if bound is None else f"    # {bound.provider}: {bound.kernel.name}"
    return f"{node.name} = {name}({values}){suffix}"


def _value(value: object) -> str:
    if isinstance(value, fx.Node):
        return str(value.target) if value.op == "get_attr" else value.name
    if isinstance(value, (tuple, list)):
        return "(" + ", ".join(_value(one) for one in value) + ")"
    return f"{value:.6g}" if isinstance(value, float) else repr(value)


def shape_of(model: ModelGraph, node: fx.Node) -> tuple[int, ...]:
    """The shape of a parameter or buffer node; a state's begins with ones for what the pool decides."""
    target = str(node.target)
    spec = model.weights.get(target)
    return tuple(model.root.get_buffer(target).shape) if spec is None else spec.shape


__all__ = [
    "FACTS",
    "RESOLUTION",
    "ModelGraph",
    "QuantizedPart",
    "StatePlace",
    "WeightSpec",
    "argument",
    "as_text",
    "plain_arguments",
    "resolution",
    "shape_of",
]
