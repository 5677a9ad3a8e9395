"""What lies between the attention blocks, captured once and replayed. Knows graphs and sizes; knows no op's meaning.

Only what has a row per token is captured, for a few numbers of tokens; smaller steps are padded to the next. A capture
is used if its replay gives what the same code gave without it: on some releases of the stack replays are garbled.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from anychip_kunlun.stack import Stack
from anychip_kunlun.vendor import VendorOps
from anychip_sdk.hooks import CompileContext
from anychip_sdk.ops import Op
from anychip_sdk.registry import Resolution

#: asks for it; off by default, since the stack's replays can't be trusted everywhere
VARIABLE = "ANYCHIP_KUNLUN_GRAPHS"
#: what the stack wants to be told before torch is imported
STACK_VARIABLE = "XMLIR_FORCE_USE_XPU_GRAPH"
#: ops that read what a step's sequences are; they run as they are
DYNAMIC = ("kv_write", "mha", "paged_attention", "select_rows")
#: numbers of tokens that are captured
SIZES = (1, 2, 4, 8, 16, 32, 64)
#: how far a replay may be off, in roundings of the largest number
ROUNDINGS = 8.0

log = logging.getLogger("anychip_kunlun")

Values = dict[fx.Node, Any]


@dataclass(frozen=True)
class Piece:
    """Nodes that run one after the other, all captured or none."""

    nodes: tuple[fx.Node, ...]
    is_static: bool
    inputs: tuple[fx.Node, ...]  #: computed before, or inputs of the step
    outputs: tuple[fx.Node, ...]  #: read behind it


@dataclass(frozen=True)
class Captured:
    graph: Any
    inputs: tuple[torch.Tensor, ...]
    outputs: tuple[torch.Tensor, ...]


def graphs_wanted(stack: Stack) -> bool:
    """Whether the user asked for captured graphs."""
    return stack.environ.get(VARIABLE, "0") not in ("", "0")


def compile_pieces(graph: fx.Graph, context: CompileContext, vendor: VendorOps) -> PiecewiseGraph | None:
    """A runner of the graph; None where it has to run as generated, since an op is computed in another dtype."""
    bound = [node.meta.get("resolution") for node in graph.nodes if isinstance(node.target, Op)]
    if any(not isinstance(one, Resolution) or one.compute_dtype is not None for one in bound):
        log.warning("graphs are not captured: an op is computed in another dtype than the model's")
        return None
    return PiecewiseGraph(graph, context, vendor)


def cut(graph: fx.Graph) -> tuple[Piece, ...]:
    """The pieces in order. Behind `select_rows` rows are no tokens any more, so that nothing there is captured."""
    groups: list[tuple[bool, list[fx.Node]]] = []
    where: dict[fx.Node, int] = {}
    is_behind = False
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr", "output"):
            continue
        if node.target is operator.getitem:
            where[node] = where[node.args[0]]  # the parts of a result belong to what made it
            groups[where[node]][1].append(node)
            continue
        name = node.target.name if isinstance(node.target, Op) else ""
        is_behind = is_behind or name == "select_rows"
        is_static = name not in DYNAMIC and not is_behind
        if not groups or groups[-1][0] != is_static:
            groups.append((is_static, []))
        where[node] = len(groups) - 1
        groups[-1][1].append(node)
    return tuple(_piece(nodes, is_static) for is_static, nodes in groups)


def _piece(nodes: Sequence[fx.Node], is_static: bool) -> Piece:
    inside = set(nodes)
    read = dict.fromkeys(one for node in nodes for one in node.all_input_nodes if one.op != "get_attr")
    inputs = tuple(node for node in read if node not in inside)
    outputs = tuple(node for node in nodes if any(user not in inside for user in node.users))
    return Piece(tuple(nodes), is_static, inputs, outputs)


class PiecewiseGraph:
    """Runs a step: captured pieces by replay, the others as they are."""

    def __init__(self, graph: fx.Graph, context: CompileContext, vendor: VendorOps) -> None:
        self._context = context
        self._vendor = vendor
        self._inputs = [node for node in graph.nodes if node.op == "placeholder"]
        [self._output] = next(node for node in graph.nodes if node.op == "output").args
        self._pieces = cut(graph)
        self._sizes = tuple(size for size in SIZES if size <= max(1, context.max_rows))
        self._captured: dict[tuple[int, int], Captured] = {}
        self.is_trusted = True  #: until a replay is wrong or a capture fails

    def __call__(self, *inputs: Any) -> Any:
        values: Values = dict(zip(self._inputs, inputs, strict=True))
        tokens = len(inputs[0])
        for number, piece in enumerate(self._pieces):
            if piece.is_static and self.is_trusted and tokens <= self._sizes[-1]:
                self._replay(number, piece, tokens, values)
            else:
                self._run(piece.nodes, values)
        return values[self._output]

    def _replay(self, number: int, piece: Piece, tokens: int, values: Values) -> None:
        if (number, self._sizes[0]) not in self._captured:
            self._capture_all(number, piece, values)
        if not self.is_trusted:
            self._run(piece.nodes, values)
            return
        found = self._captured[number, next(size for size in self._sizes if size >= tokens)]
        for buffer, node in zip(found.inputs, piece.inputs, strict=True):
            buffer[:tokens].copy_(values[node])
        self._vendor.trail.last_op = f"a captured graph (piece {number})"
        found.graph.replay()
        values.update({node: out[:tokens] for node, out in zip(piece.outputs, found.outputs, strict=True)})

    def _capture_all(self, number: int, piece: Piece, values: Values) -> None:
        """Every size at once, in the warm-up: a capture while serving would be a slow step."""
        for size in self._sizes:
            try:
                captured = self._capture(piece, size, values)
            except RuntimeError as error:
                self._distrust(f"capturing piece {number} failed: {error}")
                return
            if captured is None:
                self._distrust(f"the replay of piece {number} with {size} tokens is not what the same code gives")
                return
            self._captured[number, size] = captured

    def _capture(self, piece: Piece, size: int, values: Values) -> Captured | None:
        """The graph for so many tokens; None where its replay differs."""
        buffers = tuple(_repeated(values[node], size) for node in piece.inputs)
        expected = self._outputs(piece, buffers)
        graph = self._vendor.stack.accelerator.CUDAGraph()
        with self._vendor.stack.accelerator.graph(graph):
            outputs = self._outputs(piece, buffers)
        graph.replay()
        right = all(_is_near(*pair) for pair in zip(outputs, expected, strict=True))
        return Captured(graph, buffers, outputs) if right else None

    def _outputs(self, piece: Piece, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        values: Values = dict(zip(piece.inputs, inputs, strict=True))
        self._run(piece.nodes, values)
        return tuple(values[node] for node in piece.outputs)

    def _run(self, nodes: Sequence[fx.Node], values: Values) -> None:
        for node in nodes:
            args = self._arguments(node, values)
            if node.op == "call_method":
                values[node] = getattr(args[0], str(node.target))(*args[1:])
            elif isinstance(node.target, Op):
                values[node] = node.meta["resolution"].kernel.function(*args)
            else:
                assert callable(node.target)
                values[node] = node.target(*args)

    def _arguments(self, user: fx.Node, values: Values) -> list[Any]:
        def look_up(node: fx.Node) -> Any:
            return self._value(node, user, values)

        return [fx.map_arg(arg, look_up) for arg in user.args]

    def _value(self, node: fx.Node, user: fx.Node, values: Values) -> Any:
        if node.op != "get_attr":
            return values[node]
        prepared = f"{node.target}@{user.target.name}" if isinstance(user.target, Op) else ""
        found = self._context.values
        return found[prepared] if prepared in found else found[str(node.target)]

    def _distrust(self, why: str) -> None:
        log.warning("graphs are not used: %s", why)
        self.is_trusted = False
        self._captured.clear()


def _repeated(value: torch.Tensor, size: int) -> torch.Tensor:
    """A buffer of `size` rows that holds the rows of `value`, again and again."""
    rows = torch.arange(size, device=value.device) % len(value)
    return value.index_select(0, rows)


def _is_near(got: torch.Tensor, expected: torch.Tensor) -> bool:
    if not expected.is_floating_point():
        return torch.equal(got, expected)
    bound = ROUNDINGS * torch.finfo(expected.dtype).eps * float(expected.abs().max())
    return bool((got - expected).abs().max() <= bound)


__all__ = ["STACK_VARIABLE", "VARIABLE", "PiecewiseGraph", "compile_pieces", "cut", "graphs_wanted"]
