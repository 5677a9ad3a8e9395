"""A model's forward as a list of calls: what a graph becomes, and what a backend's compiler gets. Knows no model.

A program is data. It is printed for people, run by `interpret` or as generated Python, and handed to a backend's
compiler, whole or in pieces: runs of calls that the backend takes. Values have names; each is made once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Union

import torch

from anychip_sdk.ops.base import CATALOGUE, Arg
from anychip_sdk.registry import Facts, KernelFunction, Prepare, Resolution, dtype_name
from anychip_sdk.step import Step, StepLimits

Rows = Literal["tokens", "logits"]  #: what a value has its first dimension for
Shape = tuple[Union[int, str], ...]  #: the first dimension is "tokens" or "logits"

#: calls that compute nothing: they look at a value in another way
VIEWS = ("flatten", "item", "split", "view")


@dataclass(frozen=True)
class Value:
    """A value that a call of the program makes."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Constant:
    """A value bound at load: a weight, a state tensor or a table; `key` is its name in `CompileContext.values`."""

    key: str

    def __str__(self) -> str:
        return self.key


@dataclass(frozen=True)
class StepInput:
    """The step, or what the program's preparation of that number made of it."""

    preparation: int | None = None

    def __str__(self) -> str:
        return "step" if self.preparation is None else f"prepared_{self.preparation}"


@dataclass(frozen=True)
class Preparation:
    """One `Prepare` of a kernel with what it reads; made once at load, run once a step."""

    prepare: Prepare
    facts: Facts
    constants: Mapping[str, Constant]

    def bind(self, values: Mapping[str, Any], limits: StepLimits) -> Callable[[Step], Any]:
        """What is called with each step."""
        return self.prepare.make(
            self.facts, {name: values[constant.key] for name, constant in self.constants.items()}, limits
        )


@dataclass(frozen=True)
class Call:
    """One call of a kernel, or one view.

    Attributes:
        op: the catalogue's name, or one of VIEWS.
        args: in the catalogue's order: Value, Constant, StepInput, plain values, and tuples of these.
        results: names of the values made; None for those that nobody reads.
        rows: what the results have their first dimension for.
        bound: the kernel and why it runs; None for a view.
        facts: what the kernel was chosen for; empty for a view.
    """

    op: str
    args: tuple[Any, ...]
    results: tuple[str | None, ...]
    rows: Rows
    bound: Resolution | None = None
    facts: Facts = field(default_factory=dict)

    @property
    def is_view(self) -> bool:
        return self.bound is None

    @property
    def reads(self) -> tuple[str, ...]:
        """The names of the values that it takes, each once."""
        return tuple(dict.fromkeys(one.name for one in _leaves(self.args) if isinstance(one, Value)))

    @property
    def makes(self) -> tuple[str, ...]:
        return tuple(name for name in self.results if name is not None)

    def named(self) -> dict[str, Any]:
        """The arguments by the schema's names; of a kernel's call only."""
        return {arg.name: value for arg, value in zip(CATALOGUE[self.op].args, self.args, strict=True)}

    def __str__(self) -> str:
        made = ", ".join(name or "_" for name in self.results)
        text = f"{made} = {self.op}({', '.join(map(_text, self.args))})"
        return text if self.bound is None else f"{text}    # {self.bound.provider}: {self.bound.kernel.name}"


@dataclass(frozen=True)
class Program:
    """Calls in order.

    Attributes:
        calls: each reads inputs and what earlier calls made.
        inputs: values that come from outside, beside the step; empty for a whole forward.
        outputs: values that it returns.
        shapes: of every value, inputs included; states have none.
        dtypes: of every value, likewise.
        preparations: what its calls' `StepInput`s number.
    """

    calls: tuple[Call, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    shapes: Mapping[str, Shape]
    dtypes: Mapping[str, torch.dtype]
    preparations: tuple[Preparation, ...] = ()

    def last_reads(self) -> dict[int, tuple[str, ...]]:
        """Call number -> the values that nobody reads behind it; a value that nobody reads dies where it is made."""
        last: dict[str, int] = {}
        for number, call in enumerate(self.calls):
            last.update(dict.fromkeys((*call.makes, *call.reads), number))
        found: dict[int, tuple[str, ...]] = {}
        for name, number in last.items():
            if name not in self.outputs:
                found[number] = (*found.get(number, ()), name)
        return found

    def piece(self, start: int, stop: int) -> Program:
        """Calls start .. stop-1 as a program of their own."""
        calls = self.calls[start:stop]
        made = {name for call in calls for name in call.makes}
        read = dict.fromkeys(name for call in calls for name in call.reads if name not in made)
        later = {*self.outputs, *(name for call in self.calls[stop:] for name in call.reads)}
        outputs = tuple(name for call in calls for name in call.makes if name in later)
        return replace(self, calls=calls, inputs=tuple(read), outputs=outputs)

    def __str__(self) -> str:
        head = f"program({', '.join(('step', *self.inputs))})"
        return "\n".join((head, *(f"    {call}" for call in self.calls), f"    return {', '.join(self.outputs)}"))


def is_own_dtype(arg: Arg) -> bool:
    """Whether an argument or result has the op's own dtype, and is cast where the op is computed in another.

    States are not: they have the pool's dtype whatever the op's, and a cast copy would take what is to be written.
    """
    return arg.dtype == "T" and not arg.state


def bound_function(bound: Resolution) -> KernelFunction:
    """The kernel's function, with casts around it where the recipe computes the op in another dtype.

    Weights that the kernel prepared are not cast: they were before.
    """
    function, compute, own = bound.kernel.function, bound.compute_dtype, bound.key.dtype
    if compute is None:
        return function
    op = CATALOGUE[bound.key.name]
    takes = [is_own_dtype(arg) and not (arg.weight and bound.kernel.prepares_weight) for arg in op.args]
    gives = [is_own_dtype(result) for result in op.returns]

    def call(*args: Any) -> Any:
        results = function(*(_cast(*pair, compute) for pair in zip(args, takes, strict=True)))
        if isinstance(results, tuple):
            return tuple(_cast(*pair, own) for pair in zip(results, gives, strict=True))
        return _cast(results, gives[0], own)

    call.__name__ = f"{bound.kernel.name} in {dtype_name(compute)}"
    return call


def interpret(
    program: Program, values: Mapping[str, Any], limits: StepLimits
) -> Callable[..., tuple[torch.Tensor, ...]]:
    """The program as a function of the step and its inputs, one call at a time.

    Args:
        program: whose kernels run.
        values: constants by key.
        limits: of the steps that will come.
    """
    functions = [None if call.bound is None else bound_function(call.bound) for call in program.calls]
    used = {one.preparation for call in program.calls for one in _leaves(call.args) if isinstance(one, StepInput)}
    preparations = {number: program.preparations[number].bind(values, limits) for number in used if number is not None}
    dying = program.last_reads()

    def run(step: Step, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        known: dict[str, Any] = dict(zip(program.inputs, inputs, strict=True))
        prepared = {number: prepare(step) for number, prepare in preparations.items()}

        def value_of(one: Any) -> Any:
            if isinstance(one, Value):
                return known[one.name]
            if isinstance(one, Constant):
                return values[one.key]
            if isinstance(one, StepInput):
                return step if one.preparation is None else prepared[one.preparation]
            return tuple(map(value_of, one)) if isinstance(one, tuple) else one

        for number, (call, function) in enumerate(zip(program.calls, functions, strict=True)):
            args = [value_of(one) for one in call.args]
            answer = view(call.op, args) if function is None else function(*args)
            results = answer if isinstance(answer, (tuple, list)) else (answer,)
            known.update((name, one) for name, one in zip(call.results, results, strict=True) if name is not None)
            for name in dying.get(number, ()):
                known.pop(name, None)
        return tuple(known[name] for name in program.outputs)

    return run


def view(name: str, args: Sequence[Any]) -> Any:
    """What a view gives: a tensor, or a tuple of tensors for `split`."""
    value, *rest = args
    if name == "item":
        return value[rest[0]]
    if name not in VIEWS:
        message = f"'{name}' is no view; expected one of {', '.join(VIEWS)}"
        raise ValueError(message)
    return getattr(value, name)(*rest)


def _leaves(args: Sequence[Any]) -> Iterator[Any]:
    for one in args:
        if isinstance(one, tuple):
            yield from _leaves(one)
        else:
            yield one


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return "(" + ", ".join(map(_text, value)) + ")"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _cast(value: Any, wanted: bool, dtype: torch.dtype) -> Any:
    return value.to(dtype) if wanted and isinstance(value, torch.Tensor) else value


__all__ = [
    "VIEWS",
    "Call",
    "Constant",
    "Preparation",
    "Program",
    "Rows",
    "Shape",
    "StepInput",
    "Value",
    "bound_function",
    "interpret",
    "is_own_dtype",
    "view",
]
