"""Step 6: straight-line Python of a program, with kernels and constants bound and pieces called as one."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from anychip.graph.program import Pieces
from anychip_sdk.program import Call, Constant, Program, StepInput, Value, bound_function
from anychip_sdk.step import Step, StepLimits

Forward = Callable[[Step], torch.Tensor]
Compiled = Callable[..., tuple[torch.Tensor, ...]]  #: the step and a piece's inputs in, its outputs out


@dataclass(frozen=True)
class Generated:
    """The code of a program and the function that it defines: the step and the program's inputs in, outputs out."""

    source: str
    function: Compiled

    def logits(self, step: Step) -> torch.Tensor:
        """The only output of a whole forward."""
        [out] = self.function(step)
        return out


def generate(
    program: Program,
    values: Mapping[str, Any],
    limits: StepLimits,
    compiled: Mapping[tuple[int, int], Compiled] | None = None,
) -> Generated:
    """Compile a program to a function.

    Args:
        program: what becomes code.
        values: constants by key.
        limits: the most that any step holds.
        compiled: (start, stop) of calls -> what runs in their place.
    """
    writer = _Writer(program, values, limits)
    writer.write(compiled or {})
    source = "\n".join((f"def forward({', '.join(('step', *program.inputs))}):", *writer.lines, ""))
    name = f"<anychip program {id(program):x} {len(compiled or {})}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)  # tracebacks show the line
    exec(compile(source, name, "exec"), writer.namespace)
    return Generated(source, writer.namespace["forward"])


def source_of(program: Program, pieces: Pieces) -> str:
    """The code alone, for people; nothing is loaded."""
    writer = _Writer(program, {}, None)
    writer.write(dict.fromkeys(pieces.spans, _not_compiled))
    return "\n".join((f"def forward({', '.join(('step', *program.inputs))}):", *writer.lines, ""))


def _not_compiled(*_: Any) -> tuple[torch.Tensor, ...]:
    raise AssertionError("the code is only shown")


class _Writer:
    """Args:
    limits: None where the code is only shown: nothing is bound then.
    """

    def __init__(self, program: Program, values: Mapping[str, Any], limits: StepLimits | None) -> None:
        self.lines: list[str] = []
        self.namespace: dict[str, Any] = {}
        self._program = program
        self._values = values
        self._limits = limits
        self._names: dict[object, str] = {}
        self._taken = {"step", *program.inputs, *program.shapes}

    def write(self, compiled: Mapping[tuple[int, int], Compiled]) -> None:
        program, dying = self._program, self._program.last_reads()
        starts = {start: (stop, function) for (start, stop), function in compiled.items()}
        body = self.lines
        number = 0
        while number < len(program.calls):
            if number in starts:
                stop, function = starts[number]
                line = self._piece(number, stop, function)
            else:
                stop, line = number + 1, self._call(program.calls[number])
            made = {name for call in program.calls[number:stop] for name in call.makes}
            dead = [name for one in range(number, stop) for name in dying.get(one, ())]
            inner = made.difference(program.piece(number, stop).outputs) if stop - number > 1 else set()
            body.append(f"    {line}{_freed([name for name in dead if name not in inner])}")
            number = stop
        preparations = [self._preparation(number) for number in sorted(self._used())]
        self.lines = [*preparations, *body, f"    return {_tuple(program.outputs)}"]

    def _used(self) -> set[int]:
        return {int(key[1]) for key in self._names if isinstance(key, tuple) and key[0] == "prepared"}

    def _preparation(self, number: int) -> str:
        preparation = self._program.preparations[number]
        function = None if self._limits is None else preparation.bind(self._values, self._limits)
        name = self._bind(("prepare", number), f"prepare_{number}", function)
        return f"    prepared_{number} = {name}(step)"

    def _piece(self, start: int, stop: int, function: Compiled) -> str:
        piece = self._program.piece(start, stop)
        name = self._bind(("piece", start), f"piece_{start}_{stop}", function)
        return f"{_tuple(piece.outputs)} = {name}({', '.join(('step', *piece.inputs))})"

    def _call(self, call: Call) -> str:
        args = [self._argument(one) for one in call.args]
        made = ", ".join(name or "_" for name in call.results)
        if call.bound is None:
            owner, *rest = args
            text = f"{owner}[{rest[0]}]" if call.op == "item" else f"{owner}.{call.op}({', '.join(rest)})"
            return f"{made} = {text}"
        bound = call.bound
        function = None if self._limits is None else bound_function(bound)
        key = ("kernel", id(bound.kernel), bound.compute_dtype)
        return f"{made} = {self._bind(key, f'{call.op}_{bound.provider}', function)}({', '.join(args)})"

    def _argument(self, value: Any) -> str:
        if isinstance(value, Value):
            return value.name
        if isinstance(value, StepInput):
            if value.preparation is None:
                return "step"
            self._names[("prepared", value.preparation)] = f"prepared_{value.preparation}"
            return f"prepared_{value.preparation}"
        if isinstance(value, Constant):
            return self._bind(("constant", value.key), value.key, self._values.get(value.key))
        if isinstance(value, tuple):
            return "(" + "".join(self._argument(one) + ", " for one in value) + ")"
        return repr(value)

    def _bind(self, key: object, hint: str, value: Any) -> str:
        """The name of something bound, made at its first use."""
        if key not in self._names:
            stem = "".join(letter if letter.isalnum() else "_" for letter in hint)
            name, number = stem, 0
            while name in self.namespace or name in self._taken:
                number += 1
                name = f"{stem}_{number}"
            self._names[key] = name
            self.namespace[name] = value
        return self._names[key]


def _tuple(names: tuple[str, ...]) -> str:
    return "(" + "".join(f"{name}, " for name in names) + ")"


def _freed(names: list[str]) -> str:
    return f"; del {', '.join(names)}" if names else ""


__all__ = ["Compiled", "Forward", "Generated", "generate", "source_of"]
