"""Shapes and dtypes of a graph's values, from schemas and the shapes of parameters. Computes no value."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, Union

import torch
from torch import fx

from anychip.graph.ir import ModelGraph, resolution, shape_of
from anychip_sdk.ops import Arg, Op
from anychip_sdk.program import Shape

TOKENS, LOGITS = "tokens", "logits"  #: the first dimensions that a step decides

#: of a node with several results, one for each
Shapes = tuple[Shape, ...]
_Dims = dict[str, Union[int, str, Shape]]


class ValueShapes:
    """What each computed node of a bound graph gives."""

    def __init__(self, model: ModelGraph) -> None:
        self._model = model
        self._shapes: dict[fx.Node, Shapes] = {}
        for node in model.graph.nodes:
            if node.op not in ("placeholder", "get_attr", "output"):
                self._shapes[node] = self._of(node)

    def of(self, node: fx.Node) -> Shapes:
        """One shape for each result; a state that an op returns has its own."""
        return self._shapes[node]

    def dtypes(self, node: fx.Node) -> tuple[torch.dtype, ...]:
        """One for each result."""
        if isinstance(node.target, Op):
            own = resolution(node).key.dtype
            return tuple(_dtype(node.target, result, own) for result in node.target.returns)
        source = node.args[0]
        assert isinstance(source, fx.Node)
        [*first] = self.dtypes(source)
        if node.target is operator.getitem:
            return (first[node.args[1]],)  # type: ignore[index]
        return (first[0],) * len(self._shapes[node])

    def _of(self, node: fx.Node) -> Shapes:
        if isinstance(node.target, Op):
            return self._results(node, node.target)
        source, *rest = node.args
        assert isinstance(source, fx.Node)
        if node.target is operator.getitem:
            return (self._shapes[source][rest[0]],)  # type: ignore[index]
        [shape] = self._shapes[source]
        return _viewed(shape, str(node.target), rest)

    def _results(self, node: fx.Node, op: Op) -> Shapes:
        found: _Dims = {TOKENS: TOKENS, LOGITS: LOGITS}
        for arg, value in zip(op.args, node.args, strict=True):
            if isinstance(value, fx.Node) and arg.shape:
                _bind(arg, self._shape(value), found)
            elif arg.dtype == "int" and isinstance(value, int):
                found[arg.name] = value
        return tuple(_evaluated(op, result, found) for result in op.returns)

    def _shape(self, value: fx.Node) -> Shape:
        if value.op == "get_attr":
            return shape_of(self._model, value)
        return self._shapes[value][0]


def width(shape: Shape) -> int:
    """Elements for each row of the first dimension."""
    return math.prod(size for size in shape[1:] if isinstance(size, int))


def _bind(arg: Arg, shape: Shape, found: _Dims) -> None:
    """Note what a schema's names stand for; what is found first counts, the rows' own names aside."""
    names, sizes = list(arg.shape), list(shape)
    if names[0] == "...":
        behind = len(names) - 1
        found["..."] = tuple(sizes[: len(sizes) - behind])
        names, sizes = names[1:], sizes[len(sizes) - behind :]
    for name, size in zip(names, sizes, strict=True):
        if name.isidentifier() and (isinstance(size, str) or name not in found):
            found[name] = size


def _evaluated(op: Op, result: Arg, found: _Dims) -> Shape:
    sizes: list[int | str] = []
    for name in result.shape:
        size = found.get(name) or _sum(name, found)
        if size is None:
            message = f"{op.name}: no argument says how large '{name}' of its result '{result.name}' is"
            raise ValueError(message)
        if isinstance(size, tuple):
            sizes.extend(size)
        else:
            sizes.append(size)
    return tuple(sizes)


def _sum(name: str, found: _Dims) -> int | None:
    """Of the numbers that an expression adds up."""
    parts = [found.get(part) for part in name.split(" + ")]
    return sum(parts) if all(isinstance(part, int) for part in parts) else None  # type: ignore[arg-type]


def _viewed(shape: Shape, name: str, rest: Sequence[Any]) -> Shapes:
    """What `view`, `flatten` and `split` make of a shape whose first dimension is the rows'."""
    rows, *sizes = shape
    if name == "view":
        return ((rows, *rest[1:]),)
    if name == "flatten":
        return ((rows, math.prod(size for size in sizes if isinstance(size, int))),)
    if name == "split":
        parts, dim = rest
        at = dim % len(shape)
        return tuple((*shape[:at], part, *shape[at + 1 :]) for part in parts)
    message = f"a graph has no view '{name}'; expected view, flatten or split"
    raise ValueError(message)


def _dtype(op: Op, result: Arg, own: torch.dtype) -> torch.dtype:
    if result.dtype == "T":
        return own
    fixed: torch.dtype = getattr(torch, result.dtype)
    # what is float32 at least, such as logits, is float64 where the op is
    return own if fixed == torch.float32 and own == torch.float64 else fixed


__all__ = ["LOGITS", "TOKENS", "Shapes", "ValueShapes", "width"]
