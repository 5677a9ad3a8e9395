"""Step 5: a bound graph becomes a program, and is cut where the backend's compiler takes a run of it."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import fx

from anychip.graph.ir import FACTS, ModelGraph, WeightSpec, plain_arguments, resolution
from anychip.graph.shapes import LOGITS, ValueShapes
from anychip_sdk.ops import Op
from anychip_sdk.program import Call, Constant, Preparation, Program, Rows, Shape, StepInput, Value
from anychip_sdk.registry import Facts, Resolution

#: a run of fewer kernels is not worth a call of its own
KERNELS_MIN = 2


@dataclass(frozen=True)
class Cut:
    """A call that the backend's compiler leaves to generated Python."""

    call: int
    op: str
    reason: str


@dataclass(frozen=True)
class Pieces:
    """How a backend's compiler takes a program.

    Attributes:
        spans: (start, stop) of each run of calls that is compiled.
        cuts: the kernels that aren't, in order.
    """

    spans: tuple[tuple[int, int], ...] = ()
    cuts: tuple[Cut, ...] = ()

    def is_whole(self, program: Program) -> bool:
        """Whether the forward is one piece."""
        return self.spans == ((0, len(program.calls)),)


class WeightUse(NamedTuple):
    """One form in which a parameter is held: as it is, or prepared for one op's kernel."""

    spec: WeightSpec
    key: str  #: of the constant
    op: str
    bound: Resolution

    @property
    def is_prepared(self) -> bool:
        return self.bound.kernel.prepares_weight

    def held_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """Of its elements before any preparation, where the model's dtype is `dtype`."""
        if self.spec.quantized is not None or self.spec.dtype is not None:
            return self.spec.held_dtype(dtype)
        return (self.bound.compute_dtype or dtype) if self.is_prepared else dtype


def weight_uses(model: ModelGraph) -> list[WeightUse]:
    """Every form in which a bound graph reads its parameters, each once, in order of first use."""
    found: dict[str, WeightUse] = {}
    for node, op in model.op_nodes():
        for arg, value in zip(op.args, node.args, strict=True):
            if isinstance(value, fx.Node) and str(value.target) in model.weights and value.op == "get_attr":
                bound, name = resolution(node), str(value.target)
                key = weight_key(name, bound) if arg.weight else name
                found.setdefault(key, WeightUse(model.weights[name], key, op.name, bound))
    return list(found.values())


def weight_key(target: str, bound: Resolution) -> str:
    """Under which name a kernel finds a weight: one that prepares its weights has a value of its own."""
    return f"{target}@{bound.kernel.op}" if bound.kernel.prepares_weight else target


def program_of(model: ModelGraph) -> Program:
    """The graph as calls; all its ops must be bound."""
    return _Builder(model).program()


def cut(program: Program, refused: Sequence[str | None] | None) -> Pieces:
    """Runs of calls that a compiler takes.

    Args:
        program: the whole forward.
        refused: for each call None where the compiler takes it, else why not; None: there is no compiler.
    """
    if refused is None:
        return Pieces()
    spans: list[tuple[int, int]] = []
    reasons = list(refused)
    start: int | None = None
    for number, reason in enumerate([*reasons, "the end"]):
        if reason is None and start is None:
            start = number
        if reason is not None and start is not None:
            if _kernels(program, start, number) >= KERNELS_MIN:
                spans.append((start, number))
            else:
                reasons[start:number] = ["alone between calls that are not compiled"] * (number - start)
            start = None
    cuts = tuple(
        Cut(number, call.op, reason)
        for number, (call, reason) in enumerate(zip(program.calls, reasons, strict=True))
        if reason is not None and not call.is_view
    )
    return Pieces(tuple(spans), cuts)


def _kernels(program: Program, start: int, stop: int) -> int:
    return sum(not call.is_view for call in program.calls[start:stop])


class _Builder:
    def __init__(self, model: ModelGraph) -> None:
        self._model = model
        self._shapes = ValueShapes(model)
        self._values: dict[str, Shape] = {}
        self._dtypes: dict[str, torch.dtype] = {}
        self._states: dict[fx.Node, Any] = {}  # what a state is called that an op wrote to and returned
        self._preparations: dict[object, int] = {}
        self._prepared: list[Preparation] = []

    def program(self) -> Program:
        calls: list[Call] = []
        outputs: tuple[str, ...] = ()
        for node in self._model.graph.nodes:
            if node.op in ("placeholder", "get_attr") or node.target is operator.getitem:
                continue
            if node.op == "output":
                returned = node.args[0]
                results = returned if isinstance(returned, (tuple, list)) else (returned,)
                outputs = tuple(one.name for one in results if isinstance(one, fx.Node))
            else:
                calls.append(self._call(node))
        return Program(tuple(calls), (), outputs, self._values, self._dtypes, tuple(self._prepared))

    def _call(self, node: fx.Node) -> Call:
        rows: Rows = "logits" if self._shapes.of(node)[0][:1] == (LOGITS,) else "tokens"
        if not isinstance(node.target, Op):
            args = tuple(self._argument(arg, None) for arg in node.args)
            return Call(str(node.target), args, self._results(node), rows)
        bound, facts = resolution(node), {**node.meta[FACTS], **plain_arguments(node, node.target)}
        weights = set(node.target.weights)
        named = {
            arg.name: self._argument(value, bound if arg.name in weights else None)
            for arg, value in zip(node.target.args, node.args, strict=True)
        }
        at = node.target.step_index
        if at is not None and bound.kernel.prepare is not None:
            named[node.target.args[at].name] = StepInput(self._preparation(bound, facts, named))
        self._note_states(node, node.target, named)
        return Call(node.target.name, tuple(named.values()), self._results(node), rows, bound, facts)

    def _note_states(self, node: fx.Node, op: Op, named: Mapping[str, Any]) -> None:
        """A state that was written to is the same tensor; calls follow each other in order, so its name serves."""
        if len(op.returns) == 1 and op.returns[0].state:
            self._states[node] = named[op.returns[0].name]
            return
        for user in node.users:
            if user.target is operator.getitem and op.returns[user.args[1]].state:  # type: ignore[index]
                self._states[user] = named[op.returns[user.args[1]].name]  # type: ignore[index]

    def _results(self, node: fx.Node) -> tuple[str | None, ...]:
        """Names of the results; the parts of a tuple have those of the nodes that take them out. States have none."""
        items = {user.args[1]: user for user in node.users if user.target is operator.getitem}
        shapes, dtypes = self._shapes.of(node), self._shapes.dtypes(node)
        if not items and len(shapes) == 1:
            names: tuple[str | None, ...] = (None if node in self._states else node.name,)
        else:
            read = {index: item.name for index, item in items.items() if item.users and item not in self._states}
            names = tuple(read.get(index) for index in range(len(shapes)))
        for name, shape, dtype in zip(names, shapes, dtypes, strict=True):
            if name is not None:
                self._values[name], self._dtypes[name] = shape, dtype
        return names

    def _argument(self, value: Any, weight_of: Resolution | None) -> Any:
        if isinstance(value, (tuple, list)):
            return tuple(self._argument(one, weight_of) for one in value)
        if not isinstance(value, fx.Node):
            return value
        if value in self._states:
            return self._states[value]
        if value.op == "placeholder":
            return StepInput()
        if value.op != "get_attr":
            return Value(value.name)
        target = str(value.target)
        return Constant(weight_key(target, weight_of) if weight_of is not None else target)

    def _preparation(self, bound: Resolution, facts: Facts, named: Mapping[str, Any]) -> int:
        """The number of what a kernel prepares; calls that read the same share it."""
        prepare = bound.kernel.prepare
        assert prepare is not None
        read = {name: facts.get(name) for name in prepare.facts}
        constants = {name: named[name] for name in prepare.constants}
        key = (id(prepare.make), tuple(read.items()), tuple(constants.items()))
        if key not in self._preparations:
            self._preparations[key] = len(self._prepared)
            self._prepared.append(Preparation(prepare, read, constants))
        return self._preparations[key]


__all__ = ["KERNELS_MIN", "Cut", "Pieces", "WeightUse", "cut", "program_of", "weight_key", "weight_uses"]
