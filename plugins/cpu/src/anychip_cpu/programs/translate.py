"""A piece of a model's program as instructions of a native one. Knows calls and values; knows no op's work."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from anychip_cpu.kernels.experts import PackedExperts
from anychip_cpu.kernels.products import Packed
from anychip_cpu.programs.buffers import Buffers, addresses
from anychip_cpu.programs.instructions import WRITERS, CannotTranslateError, Writer
from anychip_cpu.programs.program import Instruction
from anychip_cpu.programs.ropes import RopePlan
from anychip_sdk.ops import CATALOGUE
from anychip_sdk.program import Call, Constant, Program, StepInput, Value, view

#: ops that turn queries and keys
ROPES = ("rope", "qk_norm_rope")


class Translated(NamedTuple):
    instructions: list[Instruction]
    held: list[torch.Tensor]  #: all tensors that the instructions point to
    inputs: list[torch.Tensor]  #: [most tokens, ...]: where the piece's inputs are read
    outputs: list[Output]
    vocabulary: int  #: logits of a row; 0: none are made
    logits_rows: str  #: "tokens" or "logits": what the logits have rows for


class Output(NamedTuple):
    """Where one of the piece's outputs lies.

    Attributes:
        tensor: [most tokens, ...], or a state; None: the logits, whose place the step brings.
        rows: "tokens", "logits", or "" of a state.
    """

    tensor: torch.Tensor | None
    rows: str


def translate(piece: Program, values: Mapping[str, Any], tokens: int) -> Translated:
    """A piece, of which no call is refused, for steps of at most so many tokens.

    Raises:
        CannotTranslateError: a constant is not what its instruction needs.
    """
    return _Translator(piece, values, tokens).run()


class _Translator:
    def __init__(self, piece: Program, values: Mapping[str, Any], tokens: int) -> None:
        self._piece, self._constants = piece, values
        self._writer = Writer(Buffers(tokens))
        self._values: dict[str, Any] = {}
        self._weights: list[torch.Tensor] = []
        self._uses = _Uses(piece)

    def run(self) -> Translated:
        writer, piece, dying = self._writer, self._piece, self._piece.last_reads()
        inputs = [self._input(name) for name in piece.inputs]
        for number, call in enumerate(piece.calls):
            self._call(number, call)
            for dead in dying.get(number, ()):
                self._values.pop(dead, None)
            writer.buffers.keep({address for value in self._values.values() for address in addresses(value)})
        outputs = [self._output(name) for name in piece.outputs]
        if not writer.instructions:
            raise CannotTranslateError("the piece computes nothing")
        held = [*writer.buffers.all, *writer.held, *self._weights]
        return Translated(writer.instructions, held, inputs, outputs, writer.vocabulary, writer.logits_rows)

    def _input(self, name: str) -> torch.Tensor:
        sizes = [int(size) for size in self._piece.shapes[name][1:]]
        made = self._writer.buffers.take(math.prod(sizes), self._piece.dtypes[name]).view(-1, *sizes)
        self._values[name] = made
        return made

    def _output(self, name: str) -> Output:
        found, shape = self._values[name], self._piece.shapes.get(name, ())
        rows = shape[0] if shape and shape[0] in ("tokens", "logits") else ""
        return Output(found, str(rows))

    def _call(self, number: int, call: Call) -> None:
        args = [self._value(one) for one in call.args]
        if call.is_view:
            answer = view(call.op, args)
        else:
            self._writer.is_selected = call.rows == "logits"
            if call.op in ROPES:
                self._writer.rope_plan = self._uses.rope_plan(number)
            names = [arg.name for arg in CATALOGUE[call.op].args]
            answer = WRITERS[call.op](self._writer, dict(zip(names, args, strict=True)))
        results = answer if isinstance(answer, (tuple, list)) else (answer,)
        self._values.update((name, one) for name, one in zip(call.results, results, strict=True) if name is not None)

    def _value(self, value: Any) -> Any:
        """What an argument stands for."""
        if isinstance(value, Value):
            return self._values[value.name]
        if isinstance(value, Constant):
            found = self._constants[value.key]
            self._weights.extend(_held(found))
            return found
        if isinstance(value, tuple):
            return tuple(map(self._value, value))
        return None if isinstance(value, StepInput) else value


class _Uses:
    """Who reads which value of a piece, and so what may be written over."""

    def __init__(self, piece: Program) -> None:
        self._piece = piece
        self._readers: dict[str, list[int]] = {}
        for number, call in enumerate(piece.calls):
            for name in _values_in(call.args):
                self._readers.setdefault(name, []).append(number)
        self._outputs = Counter(piece.outputs)
        self._makers = {name: call for call in piece.calls for name in call.makes}

    def rope_plan(self, number: int) -> RopePlan:
        """How a rope, the call of that number, may turn its queries and keys."""
        call = self._piece.calls[number]
        named = call.named()
        q, k = (named[name].name for name in ("q", "k"))
        return RopePlan(self._is_late(number, *call.results), self._is_only_read_here(q), self._is_only_read_here(k))

    def _is_late(self, number: int, q_name: str | None, k_name: str | None) -> bool:
        """Whether only a write of keys reads the keys, and nothing reads the queries up to there."""
        if k_name is None or self._outputs[k_name] or len(self._readers.get(k_name, ())) != 1:
            return False
        [writing] = self._readers[k_name]
        call = self._piece.calls[writing]
        if call.op != "kv_write" or call.named()["k"] != Value(k_name):
            return False
        early = [reader for reader in self._readers.get(q_name or "", ()) if reader <= writing]
        return not early

    def _is_only_read_here(self, name: str) -> bool:
        """Whether one call alone reads the value, and whatever it is a view of but for other parts."""
        while True:
            if len(self._readers[name]) + self._outputs[name] > 1:
                return False
            maker = self._makers.get(name)
            if maker is None or not maker.is_view:
                return True
            name = maker.reads[0]


def _held(constant: Any) -> tuple[torch.Tensor, ...]:
    """The tensors that a constant is made of."""
    if isinstance(constant, PackedExperts):
        return (constant.slices, *constant.held)
    return (constant.tensor if isinstance(constant, Packed) else constant,)


def _values_in(args: Sequence[Any]) -> list[str]:
    """The names of the values that a call takes, as often as it takes them."""
    found: list[str] = []
    for one in args:
        if isinstance(one, Value):
            found.append(one.name)
        elif isinstance(one, tuple):
            found.extend(_values_in(one))
    return found


__all__ = ["Output", "Translated", "translate"]
