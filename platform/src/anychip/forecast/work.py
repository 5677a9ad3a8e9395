"""What a graph's ops ask of a device: weights read, products, keys and values, activations moved. Knows no speed."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import torch
from torch import fx

from anychip.graph.ir import ModelGraph, WeightSpec, argument, resolution
from anychip.models.config import ModelConfig
from anychip_sdk.ops import Arg, Op
from anychip_sdk.registry import Resolution, dtype_name
from anychip_sdk.speeds import kernel_name

LOOKED_UP = ("embedding",)  #: ops that read a row of their weight for each token, not all of it
LOGITS_BYTES = 4

Widths = tuple[int, ...]  #: elements for each row, of each result


class KernelUse(NamedTuple):
    """Ops that one kernel runs with weights held in one dtype, over as many rows, behind one window."""

    op: str
    kernel: str  #: as `anychip_sdk.speeds.kernel_name` has it
    is_sampled: bool  #: its rows are those whose logits are wanted, not all tokens
    window: int | None


@dataclass(frozen=True)
class Asked:
    """What all of these ops together ask for, whatever the step; for each row of tokens, where it says so."""

    calls: int = 0
    weight_bytes: int = 0
    parameters: int = 0  #: multiplied by each row
    kv_bytes_per_token: int = 0  #: of a decode's context
    scores_per_token: int = 0
    attention_flops_per_pair: int = 0  #: of a query and a key
    moved_bytes_per_row: int = 0
    matrices: int = 0
    matrix_bytes_per_row: int = 0  #: of activations that go into matrices and come out

    def __add__(self, other: Asked) -> Asked:
        return Asked(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))

    def __sub__(self, other: Asked) -> Asked:
        return self + other.times(-1)

    def times(self, count: int) -> Asked:
        return Asked(*(getattr(self, one.name) * count for one in fields(self)))

    @property
    def by_matrix(self) -> Asked:
        """Counted by matrix instead of by op: the same, whichever ops share a kernel."""
        return replace(self, calls=self.matrices, moved_bytes_per_row=self.matrix_bytes_per_row)


def work_of(
    model: ModelGraph, config: ModelConfig, dtype: torch.dtype, kv_dtype: torch.dtype
) -> dict[KernelUse, Asked]:
    """What one step's ops ask for, by the kernels that run them; all must be bound."""
    rows = _Rows(model, config)
    found: dict[KernelUse, Asked] = {}
    for node, op in model.op_nodes():
        bound = resolution(node)
        own = bound.compute_dtype or dtype
        asked = replace(_weights(model, node, op, own), calls=1, moved_bytes_per_row=rows.moved_bytes(node, op, own))
        window = None
        if _attends(op):
            window = argument(node, op, "window")
            asked += Asked(
                kv_bytes_per_token=2 * config.kv_size * kv_dtype.itemsize,
                scores_per_token=config.num_heads,
                attention_flops_per_pair=4 * config.q_size,
            )
        use = KernelUse(op.name, name_of(bound, _held(model, node, op, own)), rows.is_sampled(node), window)
        found[use] = found.get(use, Asked()) + asked
    return found


def name_of(bound: Resolution, held: torch.dtype) -> str:
    """A bound kernel as speeds are kept by."""
    return kernel_name(bound.key.name, bound.provider, bound.kernel.name, dtype_name(held))


def _attends(op: Op) -> bool:
    return any(arg.dtype == "AttentionBatch" for arg in op.args)


def _given(model: ModelGraph, node: fx.Node, op: Op) -> Iterator[tuple[Arg, WeightSpec]]:
    """The parameters that a node reads, with what the schema says of them."""
    for arg, value in zip(op.args, node.args, strict=True):
        if arg.weight and isinstance(value, fx.Node) and str(value.target) in model.weights:
            yield arg, model.weights[str(value.target)]


def _weights(model: ModelGraph, node: fx.Node, op: Op, dtype: torch.dtype) -> Asked:
    if op.name in LOOKED_UP:
        return Asked()
    specs = [spec for _, spec in _given(model, node, op)]
    matrices = [shape for shape in map(_matrix, specs) if shape]
    return Asked(
        weight_bytes=sum(spec.elements * spec.itemsize(dtype) for spec in specs),
        parameters=sum(map(math.prod, matrices)),
        matrices=len(matrices),
        matrix_bytes_per_row=sum(map(sum, matrices)) * dtype.itemsize,
    )


def _matrix(spec: WeightSpec) -> tuple[int, ...]:
    """The shape of what each row is multiplied with, whatever it is held in; empty where that is no matrix."""
    if spec.quantized is None:
        return tuple(spec.shape) if len(spec.shape) == 2 else ()
    return tuple(spec.quantized.shape) if spec.quantized.part.name == "weight" else ()


def _held(model: ModelGraph, node: fx.Node, op: Op, dtype: torch.dtype) -> torch.dtype:
    """The dtype of a node's matrices; the op's own where it has none."""
    parts = [spec.quantized.part for _, spec in _given(model, node, op) if spec.quantized is not None]
    return next((part.dtype for part in parts if part.name == "weight"), dtype)


class _Rows:
    """How many elements for each row every value of a graph has, and which rows: all tokens, or those sampled."""

    def __init__(self, model: ModelGraph, config: ModelConfig) -> None:
        self._model = model
        self._facts = {
            "heads": config.num_heads,
            "kv_heads": config.num_kv_heads,
            "head_dim": config.head_dim,
            "hidden": config.hidden_size,
        }
        self._widths: dict[fx.Node, Widths] = {}
        self._sampled: set[fx.Node] = set()
        for node in model.graph.nodes:
            self._widths[node] = self._of(node)
            if _name(node) == "select_rows" or self._sampled.intersection(node.all_input_nodes):
                self._sampled.add(node)

    def is_sampled(self, node: fx.Node) -> bool:
        return node in self._sampled

    def moved_bytes(self, node: fx.Node, op: Op, dtype: torch.dtype) -> int:
        """Of activations that it reads and writes for each row; what goes to the cache is written too."""
        read = sum(self._width(value) for arg, value in _activations(op, node))
        sizes = [LOGITS_BYTES if result.dtype == "float32" else dtype.itemsize for result in op.returns]
        written = sum(width * size for width, size in zip(self._widths[node], sizes, strict=True))
        cached = read if op.mutated and not _attends(op) else 0
        return (read + cached) * dtype.itemsize + written

    def _width(self, value: Any) -> int:
        return sum(self._widths[value]) if isinstance(value, fx.Node) else 0

    def _of(self, node: fx.Node) -> Widths:
        if isinstance(node.target, Op):
            return tuple(self._result(node, node.target, result) for result in node.target.returns)
        if node.op == "call_method":
            return self._view(node)
        if node.target is operator.getitem:
            value, index = node.args
            return (self._widths[value][index],)  # type: ignore[index]
        return (0,)

    def _view(self, node: fx.Node) -> Widths:
        width = self._width(node.args[0])
        if node.target == "split":
            sizes: Sequence[int] = node.args[1]  # type: ignore[assignment]
            return tuple(width * size // sum(sizes) for size in sizes)
        if node.target == "chunk":
            count: int = node.args[1]  # type: ignore[assignment]
            return (width // count,) * count
        return (width,)

    def _result(self, node: fx.Node, op: Op, result: Arg) -> int:
        """The product of the shape's dimensions but the first; an argument that has the same is as wide."""
        if result.shape.startswith("[pages"):
            return 0
        for arg, value in _activations(op, node):
            if _dimensions(arg)[1:] == _dimensions(result)[1:]:
                return self._width(value)
        sizes: Mapping[str, int] = {**self._facts, **self._sizes(node, op)}
        return math.prod(sizes[name] for name in _dimensions(result)[1:])

    def _sizes(self, node: fx.Node, op: Op) -> dict[str, int]:
        """The dimensions that a node's parameters settle."""
        found: dict[str, int] = {}
        for arg, spec in _given(self._model, node, op):
            pairs = zip(_dimensions(arg), spec.shape, strict=True)
            found.update((name, size) for name, size in pairs if name.isidentifier())
        return found


def _activations(op: Op, node: fx.Node) -> Iterator[tuple[Arg, Any]]:
    for arg, value in zip(op.args, node.args, strict=True):
        if arg.dtype == "T" and not arg.weight and arg.shape and not arg.shape.startswith("[pages"):
            yield arg, value


def _dimensions(arg: Arg) -> list[str]:
    return re.split(r", *", arg.shape.strip("[]"))


def _name(node: fx.Node) -> str:
    return node.target.name if isinstance(node.target, Op) else ""


__all__ = ["LOGITS_BYTES", "Asked", "KernelUse", "name_of", "work_of"]
