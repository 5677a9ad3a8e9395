"""What a catalogue op is: its schema, its reference and how its kernels are checked. Knows no kernel and no device."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.overrides import handle_torch_function, has_torch_function

from anychip_sdk.ops.checks import Checks

STEP = "Step"  #: the dtype of the argument that is the step

ErrorKind = Literal["exact", "rounded", "ulps", "accumulated"]


@dataclass(frozen=True)
class ErrorModel:
    """How far a kernel may be from the float64 reference on inputs rounded to the dtype.

    exact: bit for bit. rounded: the float64 result rounded once. ulps: within `ulps` units in the last place.
    accumulated: a sum of `depth` products, so the error grows with what was summed:
    ulps * eps(accumulator) * sqrt(depth) * scale + one rounding, where scale is the root mean square of the result.
    """

    kind: ErrorKind
    ulps: float = 1.0
    depth: str | None = None  #: the symbolic dimension that is summed over, e.g. "in"; None: a few terms

    def tolerance(self, dtype: torch.dtype, depth: int = 1) -> tuple[float, float]:
        """(relative, absolute as a share of the result's root mean square) that a kernel of `dtype` may be off by."""
        if self.kind == "exact" or not dtype.is_floating_point:
            return 0.0, 0.0
        eps = torch.finfo(dtype).eps
        if self.kind == "rounded":
            return eps, 0.0
        if self.kind == "ulps":
            return self.ulps * eps, self.ulps * eps * 2.0**-10
        accumulator = torch.finfo(torch.float32).eps if eps > torch.finfo(torch.float32).eps else eps
        return 2 * eps, self.ulps * (accumulator * max(1, depth) ** 0.5 + 2 * eps)


@dataclass(frozen=True)
class Arg:
    """One argument or result of an op.

    Attributes:
        shape: named dimensions, e.g. ("tokens", "heads", "head_dim"); "..." stands for any number of them, and a name
            may be an expression of others, "2 * inner"; in results a sum of plain arguments too, "top_k + shared".
            Empty: a plain value, or the step.
        dtype: "T" is the op's own (OpKey.dtype), "Step" the step; of a plain value "int", "float", "bool" or "str".
        state: a tensor of the pool: its first dimensions are the pool's.
        choices: the words that an argument of dtype "str" may be, in an order that never changes.
    """

    name: str
    shape: tuple[str, ...] = ()
    dtype: str = "T"
    optional: bool = False
    mutated: bool = False  #: written in place
    weight: bool = False  #: a parameter of the model, which a backend may have prepared
    state: bool = False
    choices: tuple[str, ...] = ()
    doc: str = ""

    @property
    def is_step(self) -> bool:
        return self.dtype == STEP

    @property
    def is_plain(self) -> bool:
        """A number or None, not a tensor and not the step."""
        return not self.shape and not self.is_step


class Op:
    """A catalogue operation. Calling it runs the reference; under torch.fx it records a call_function node."""

    def __init__(
        self,
        reference: Callable[..., Any],
        *,
        args: tuple[Arg, ...],
        returns: tuple[Arg, ...],
        error: ErrorModel,
        version: int,
        composed_of: tuple[str, ...],
        checks: Checks | None = None,
    ) -> None:
        self.name = reference.__name__
        self.version = version
        self.reference: Callable[..., Any] = reference
        self.args = args
        self.returns = returns
        self.error = error
        self.composed_of = composed_of
        self.checks = checks
        self.mistakes: list[Callable[..., Any]] = []
        self.signature = inspect.signature(reference)
        # torch.fx prints a call_function node by these
        self.__name__ = reference.__name__
        self.__qualname__ = reference.__name__
        self.__module__ = reference.__module__
        self.__doc__ = reference.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if has_torch_function(args) or (kwargs and has_torch_function(tuple(kwargs.values()))):
            return handle_torch_function(self, (*args, *kwargs.values()), *args, **kwargs)
        return self.reference(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<op {self.name} v{self.version}>"

    @property
    def weights(self) -> tuple[str, ...]:
        """The names of the arguments that are parameters of the model."""
        return tuple(arg.name for arg in self.args if arg.weight)

    @property
    def states(self) -> tuple[str, ...]:
        """The names of the arguments that are tensors of the pool."""
        return tuple(arg.name for arg in self.args if arg.state)

    @property
    def keeps_slots(self) -> bool:
        """Whether its states have an entry per sequence; else, if it has any, an entry per token."""
        return any(arg.state and arg.shape[0] == "slots" for arg in self.args)

    @property
    def step_index(self) -> int | None:
        """Which argument is the step; None where the op takes none."""
        return next((index for index, arg in enumerate(self.args) if arg.is_step), None)

    @property
    def mutated(self) -> tuple[str, ...]:
        """The names of the arguments that are written in place."""
        return tuple(arg.name for arg in self.args if arg.mutated)

    def mistake(self, broken: Callable[..., Any]) -> Callable[..., Any]:
        """Declare a kernel that is wrong in a way that is easily made; the conformance suite must find it.

        Its name and docstring say what is wrong. Decorate it with `@OP.mistake`.
        """
        self.mistakes.append(broken)
        return broken

    def schema(self) -> str:
        """One line: name(arg: dtype[shape], ...) -> results."""

        def one(arg: Arg) -> str:
            kind = arg.dtype + (f" [{', '.join(arg.shape)}]" if arg.shape else "")
            return f"{arg.name}: {kind}" + ("?" if arg.optional else "") + ("!" if arg.mutated else "")

        results = ", ".join(one(result) for result in self.returns)
        return f"{self.name}({', '.join(one(arg) for arg in self.args)}) -> {results}"


class Catalogue(Mapping[str, Op]):
    """All ops by name; adding one twice is an error."""

    def __init__(self) -> None:
        self._ops: dict[str, Op] = {}

    def __getitem__(self, name: str) -> Op:
        return self._ops[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._ops)

    def __len__(self) -> int:
        return len(self._ops)

    def add(self, new: Op) -> None:
        if new.name in self._ops:
            message = f"op {new.name} is in the catalogue already (from {self._ops[new.name].__module__})"
            raise ValueError(message)
        declared = [arg.name for arg in new.args]
        if declared != list(new.signature.parameters):
            message = f"op {new.name}: its schema names {declared}, its reference {list(new.signature.parameters)}"
            raise ValueError(message)
        self._ops[new.name] = new


CATALOGUE = Catalogue()


def op(
    *args: Arg,
    returns: Arg | tuple[Arg, ...],
    error: ErrorModel,
    version: int = 1,
    composed_of: tuple[str, ...] = (),
    checks: Checks | None = None,
) -> Callable[[Callable[..., Any]], Op]:
    """Put a reference into the catalogue as an op.

    Args:
        args: one for each parameter of the reference, in order.
        returns: what it returns; arguments written in place are returned too, so that order is visible in a graph.
        error: how far a kernel may be off.
        composed_of: for a fused op, the ops whose composition it equals.
        checks: how kernels are checked; every op of the catalogue has them.
    """

    def wrap(reference: Callable[..., Any]) -> Op:
        results = returns if isinstance(returns, tuple) else (returns,)
        new = Op(
            reference,
            args=args,
            returns=results,
            error=error,
            version=version,
            composed_of=composed_of,
            checks=checks,
        )
        CATALOGUE.add(new)
        return new

    return wrap


def accurate(dtype: torch.dtype) -> torch.dtype:
    """The dtype that references compute in: at least float32, float64 for float64."""
    return torch.promote_types(dtype, torch.float32)


EXACT = ErrorModel("exact")
ROUNDED = ErrorModel("rounded")


def ulps(count: float) -> ErrorModel:
    return ErrorModel("ulps", ulps=count)


def accumulated(depth: str, count: float = 4.0) -> ErrorModel:
    return ErrorModel("accumulated", ulps=count, depth=depth)


def cancelling(count: float) -> ErrorModel:
    """A sum of few terms that may cancel: the error is that of the terms, however small the result."""
    return ErrorModel("accumulated", ulps=count)


__all__ = [
    "CATALOGUE",
    "EXACT",
    "ROUNDED",
    "STEP",
    "Arg",
    "Catalogue",
    "ErrorModel",
    "Op",
    "accumulated",
    "accurate",
    "cancelling",
    "op",
    "ulps",
]
