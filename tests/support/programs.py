"""Programs by hand, with a backend's kernels bound: what a platform makes of a model's graph. Knows no graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from anychip_sdk.backend import Backend
from anychip_sdk.ops import CATALOGUE
from anychip_sdk.program import Call, Constant, Preparation, Program, StepInput, Value, interpret, view
from anychip_sdk.registry import Fact, OpKey, Override, dtype_name
from anychip_sdk.step import Step

Prepare = Callable[[str, torch.Tensor, str], torch.Tensor]


class ProgramMaker:
    """Calls one after the other; the references run along, so that each value's shape is known.

    Args:
        backend: whose kernels are bound.
        dtype: of every op.
        step: an example.
        facts: what kernels are chosen for, besides plain arguments.
        prepare: (name, tensor, op) -> a weight as the op's kernel takes it.
    """

    def __init__(
        self, backend: Backend, dtype: torch.dtype, step: Step, facts: Mapping[str, Fact], prepare: Prepare
    ) -> None:
        self.values: dict[str, Any] = {}  # constants as kernels take them
        self._backend, self._dtype, self._step, self._prepare = backend, dtype, step, prepare
        self._facts = {**facts, "dtype": dtype_name(dtype)}
        self._plain: dict[str, torch.Tensor] = {}
        self._known: dict[str, torch.Tensor] = {}
        self._calls: list[Call] = []
        self._shapes: dict[str, Any] = {}
        self._preparations: list[Preparation] = []

    def constant(self, key: str, tensor: torch.Tensor) -> Constant:
        self._plain[key] = self.values[key] = tensor
        return Constant(key)

    def op(self, op: str, *args: Any, rows: str = "tokens", **override: Any) -> Any:
        """A kernel's call: its results' names as values; an override is the recipe's word on the op."""
        schema = CATALOGUE[op]
        plain = {arg.name: value for arg, value in zip(schema.args, args, strict=True) if arg.is_plain}
        facts = {**self._facts, **plain}
        bound = self._backend.ops.resolve(OpKey(op, 1, self._dtype), facts, (Override(op, **override),))
        assert bound is not None
        answer = schema.reference(*map(self._value, args))
        given = list(args)
        for index, (arg, value) in enumerate(zip(schema.args, args, strict=True)):
            if arg.weight and isinstance(value, Constant) and bound.kernel.prepares_weight:
                given[index] = self._prepared(value.key, arg.name, op)
            if arg.is_step and bound.kernel.prepare is not None:
                constants = {name: args[self._index(op, name)] for name in bound.kernel.prepare.constants}
                self._preparations.append(Preparation(bound.kernel.prepare, facts, constants))
                given[index] = StepInput(len(self._preparations) - 1)
        call = Call(op, tuple(given), (), rows, bound, facts)  # type: ignore[arg-type]
        return self._made(call, answer)

    def view(self, name: str, *args: Any, rows: str = "tokens") -> Any:
        return self._made(Call(name, args, (), rows), view(name, [self._value(one) for one in args]))  # type: ignore[arg-type]

    def program(self, *outputs: Value) -> Program:
        dtypes = {name: value.dtype for name, value in self._known.items()}
        names = tuple(one.name for one in outputs)
        return Program(tuple(self._calls), (), names, self._shapes, dtypes, tuple(self._preparations))

    def _made(self, call: Call, answer: Any) -> Any:
        results = answer if isinstance(answer, (tuple, list)) else (answer,)
        names = tuple(f"{call.op}_{len(self._calls)}_{index}" for index in range(len(results)))
        states = [result.state for result in CATALOGUE[call.op].returns] if call.bound else [False] * len(results)
        for name, value, is_state in zip(names, results, states, strict=True):
            self._known[name] = value
            self._shapes[name] = (1, 1, *value.shape[2:]) if is_state else (call.rows, *value.shape[1:])
        self._calls.append(replace(call, results=names))
        return Value(names[0]) if len(names) == 1 else tuple(map(Value, names))

    def _prepared(self, key: str, name: str, op: str) -> Constant:
        own = f"{key}@{op}"
        self.values[own] = self._prepare(name, self._plain[key], op)
        return Constant(own)

    def _value(self, one: Any) -> Any:
        if isinstance(one, Value):
            return self._known[one.name]
        if isinstance(one, Constant):
            return self._plain[one.key]
        return self._step if isinstance(one, StepInput) else one

    @staticmethod
    def _index(op: str, name: str) -> int:
        return [arg.name for arg in CATALOGUE[op].args].index(name)


@contextmanager
def unchanged(states: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Puts states back as they were; what they became is in the list by then."""
    before = [state.clone() for state in states]
    became: list[torch.Tensor] = []
    try:
        yield became
    finally:
        became.extend(state.clone() for state in states)
        for state, one in zip(states, before, strict=True):
            state.copy_(one)


def values_at(program: Program, values: Mapping[str, Any], step: Step, names: Sequence[str]) -> list[torch.Tensor]:
    """What a whole program's values are, by name."""
    if not names:
        return []
    everything = replace(program, outputs=tuple(names))
    return list(interpret(everything, values, step.limits())(step))


__all__ = ["ProgramMaker", "unchanged", "values_at"]
