"""Step 5: straight-line Python with kernels and weights bound. Knows names and lifetimes; knows no fusion."""

from __future__ import annotations

import linecache
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from anychip.graph.ir import INPUTS, ModelGraph, resolution
from anychip_sdk.ops import CATALOGUE, Arg, Op
from anychip_sdk.registry import KernelFunction, Resolution

Forward = Callable[..., torch.Tensor]

CACHES = ("k_cache", "v_cache")  # arguments that are the pool's


@dataclass(frozen=True)
class Generated:
    """The code of a step's forward and the function that it defines."""

    source: str
    forward: Forward


def weight_key(target: str, user: fx.Node) -> str:
    """Under which name a user finds a weight: a kernel that prepares its weights has a value of its own."""
    if isinstance(user.target, Op) and resolution(user).kernel.prepares_weight:
        return f"{target}@{user.target.name}"
    return target


def generate(model: ModelGraph, values: Mapping[str, Any]) -> Generated:
    """Compile the graph to a function of token_ids, positions, slots, batch and logit_rows.

    Args:
        model: a graph whose ops are all bound.
        values: `weight_key` or buffer name -> what the kernel gets.
    """
    writer = _Writer(values)
    last_use = _last_uses(model.graph)
    for node in model.graph.nodes:
        writer.node(node, [dead for dead, user in last_use.items() if user is node])
    source = "\n".join((f"def forward({', '.join(INPUTS)}):", *writer.lines, ""))
    name = f"<anychip graph {id(model):x}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)  # tracebacks show the line
    exec(compile(source, name, "exec"), writer.namespace)
    return Generated(source, writer.namespace["forward"])


def source_of(model: ModelGraph) -> str:
    """The code alone, for people; nothing is loaded."""
    return generate(model, {name: object() for name in (*model.weights, *model.buffers)}).source


def bound_function(bound: Resolution) -> KernelFunction:
    """The kernel's function, with casts around it where the recipe computes the op in another dtype.

    Arguments and results of the op's own dtype are cast. The caches are not: they have the pool's dtype whatever the
    op's, and a cast copy would take what is to be written to them. Nor are weights that the kernel prepared: they were
    cast before.
    """
    function, compute, out = bound.kernel.function, bound.compute_dtype, bound.key.dtype
    if compute is None:
        return function
    op = CATALOGUE[bound.key.name]
    is_prepared = bound.kernel.prepares_weight
    takes = [_has_own_dtype(arg) and not (arg.weight and is_prepared) for arg in op.args]
    gives = [_has_own_dtype(result) for result in op.returns]

    def call(*args: Any) -> Any:
        results = function(*(_cast(*pair, compute) for pair in zip(args, takes, strict=True)))
        if isinstance(results, tuple):
            return tuple(_cast(*pair, out) for pair in zip(results, gives, strict=True))
        return _cast(results, gives[0], out)

    return call


def _has_own_dtype(arg: Arg) -> bool:
    return arg.dtype == "T" and arg.name not in CACHES


def _cast(value: Any, wanted: bool, dtype: torch.dtype) -> Any:
    return value.to(dtype) if wanted and isinstance(value, torch.Tensor) else value


class _Writer:
    def __init__(self, values: Mapping[str, Any]) -> None:
        self.lines: list[str] = []
        self.namespace: dict[str, Any] = {}
        self._values = values
        self._constants: dict[int, str] = {}

    def node(self, node: fx.Node, dead: list[fx.Node]) -> None:
        if node.op in ("placeholder", "get_attr"):
            return
        if node.op == "output":
            self.lines.append(f"    return {self._argument(node.args[0], node)}")
            return
        if _is_item(node):
            return  # its tuple was unpacked where it was made
        args = [self._argument(arg, node) for arg in node.args]
        self.lines.append(f"    {_target(node)} = {self._call(node, args)}" + _freed(node, dead))

    def _call(self, node: fx.Node, args: list[str]) -> str:
        if node.op == "call_method":
            return f"{args[0]}.{node.target}({', '.join(args[1:])})"
        if isinstance(node.target, Op):
            bound = resolution(node)
            function = self._constant(bound_function(bound), f"{node.target.name}_{bound.provider}", bound.kernel)
            return f"{function}({', '.join(args)})"
        message = f"{node.format_node()} is neither a catalogue op nor a view"
        raise AssertionError(message)

    def _argument(self, value: Any, user: fx.Node) -> str:
        if isinstance(value, fx.Node):
            if value.op != "get_attr":
                return value.name
            key = weight_key(str(value.target), user)
            if key not in self._values:
                key = str(value.target)  # buffers are never prepared
            return self._constant(self._values[key], str(value.target), self._values[key])
        if isinstance(value, (tuple, list)):
            return "(" + "".join(self._argument(one, user) + ", " for one in value) + ")"
        return repr(value)

    def _constant(self, value: Any, hint: str, identity: object) -> str:
        name = self._constants.get(id(identity))
        if name is None:
            stem = "".join(letter if letter.isalnum() else "_" for letter in hint)
            name = stem
            while name in self.namespace or name in INPUTS:
                name = f"{stem}_{len(self.namespace)}"
            self._constants[id(identity)] = name
            self.namespace[name] = value
        return name


def _is_item(node: fx.Node) -> bool:
    return node.target is operator.getitem


def _target(node: fx.Node) -> str:
    """What a call's result is assigned to: a name, or the names of a tuple's items, `_` for those nobody reads."""
    items = {user.args[1]: user for user in node.users if _is_item(user)}
    if not items:
        return node.name
    results = node.target.returns if isinstance(node.target, Op) else node.args[1]  # or split's sizes
    width = len(results)  # type: ignore[arg-type]
    read = {index: item.name for index, item in items.items() if item.users}
    return ", ".join(read.get(index, "_") for index in range(width))


def _freed(node: fx.Node, dead: list[fx.Node]) -> str:
    names = [one.name for one in dead]
    if not node.users:
        names.append(node.name)
    return f"; del {', '.join(names)}" if names else ""


def _last_uses(graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """Each computed value and the node behind which it is not needed any more."""
    last: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        for value in node.all_input_nodes:
            if value.op not in ("placeholder", "get_attr") and not _is_item(node):
                last[value] = node
    return last


__all__ = ["Forward", "Generated", "bound_function", "generate", "source_of", "weight_key"]
