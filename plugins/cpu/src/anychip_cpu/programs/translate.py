"""A model's graph as instructions of a native program. Knows nodes and values; knows no op's work."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import torch
from torch import fx

from anychip_cpu import native
from anychip_cpu.kernels.products import Packed
from anychip_cpu.programs.buffers import Buffers, addresses, last_uses
from anychip_cpu.programs.instructions import WRITERS, CannotTranslateError, Input, Writer
from anychip_cpu.programs.program import Instruction
from anychip_sdk.hooks import CompileContext
from anychip_sdk.ops import Op

VIEWS = ("split", "view", "flatten")
#: kernels whose work a program does bit for bit; those of other names may read other layouts
KERNELS = ("native", "add", "embedding", "select_rows")
#: ops whose first argument is written to
IN_PLACE = ("rope", "qk_norm_rope")


class Translated(NamedTuple):
    instructions: list[Instruction]
    held: list[torch.Tensor]  #: all tensors that the instructions point to
    outputs: int  #: logits of a row


def translate(graph: fx.Graph, context: CompileContext, tokens: int) -> Translated:
    """The whole graph for steps of at most so many tokens.

    Raises:
        CannotTranslateError: the library can't run all of it.
    """
    if context.dtype not in native.DTYPES:
        raise CannotTranslateError(f"{context.dtype} has no native kernels")
    return _Translator(context, tokens).run(graph)


class _Translator:
    def __init__(self, context: CompileContext, tokens: int) -> None:
        self._context = context
        self._writer = Writer(Buffers(tokens, context.dtype))
        self._values: dict[fx.Node, Any] = {}
        self._selected: set[fx.Node] = set()  # what has a row for each row that becomes logits
        self._weights: list[torch.Tensor] = []

    def run(self, graph: fx.Graph) -> Translated:
        writer, dying = self._writer, last_uses(graph)
        for node in graph.nodes:
            if node.op != "get_attr":
                self._values[node] = self._node(node)
            for dead in dying.get(node, ()):
                self._values.pop(dead, None)
            writer.buffers.keep({address for value in self._values.values() for address in addresses(value)})
        return Translated(writer.instructions, [*writer.buffers.all, *self._weights], writer.outputs)

    def _node(self, node: fx.Node) -> Any:
        """Where the node's result will lie."""
        if node.op == "placeholder":
            return Input(node.name)
        if any(one in self._selected for one in node.all_input_nodes):
            self._selected.add(node)
        args = [self._value(arg, node) for arg in node.args]
        if isinstance(node.target, Op):
            return self._op(node, node.target, args)
        if node.target is operator.getitem:
            return args[0][args[1]]
        if node.op == "call_method" and node.target in VIEWS:
            return getattr(args[0], str(node.target))(*args[1:])
        if node.op == "output" and args == [None] and self._writer.outputs:
            return None  # the logits, which the step brings the place of
        raise CannotTranslateError(f"{node.format_node()} has no instruction")

    def _op(self, node: fx.Node, op: Op, args: list[Any]) -> Any:
        bound = node.meta["resolution"]
        if op.name not in WRITERS:
            raise CannotTranslateError(f"{op.name} has no instruction")
        if bound.provider != "cpu" or bound.compute_dtype is not None or bound.kernel.name not in KERNELS:
            raise CannotTranslateError(f"{op.name} runs on {bound.provider}'s kernel {bound.kernel.name}")
        if op.name in IN_PLACE and len(node.all_input_nodes[0].users) > 1:
            raise CannotTranslateError(f"what {op.name} turns in place is read again")
        if op.name == "select_rows":
            self._selected.add(node)
        self._writer.is_selected = node in self._selected
        return WRITERS[op.name](self._writer, {arg.name: value for arg, value in zip(op.args, args, strict=True)})

    def _value(self, value: Any, user: fx.Node) -> Any:
        """What an argument stands for; a kernel that prepares its weights has values of its own."""
        if isinstance(value, (tuple, list)):
            return [self._value(one, user) for one in value]
        if not isinstance(value, fx.Node):
            return value
        if value.op != "get_attr":
            return self._values[value]
        values, target = self._context.values, str(value.target)
        own = f"{target}@{user.target.name}" if isinstance(user.target, Op) else target
        found = values[own] if own in values else values[target]
        self._weights.append(found.tensor if isinstance(found, Packed) else found)
        return found


__all__ = ["Translated", "translate"]
