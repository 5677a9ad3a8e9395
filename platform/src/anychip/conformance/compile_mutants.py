"""Backends whose compilers are wrong in one way each: what a capture keeps, what padding spoils. Knows no check."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from anychip.conformance.graph_mutants import CLAIMS, FusingPlugin
from anychip.graph.codegen import Compiled
from anychip_sdk.conformance.mutants import HealthyPlugin, healthy, mutant
from anychip_sdk.hooks import CompileContext, hookimpl
from anychip_sdk.program import Call, Program, StepInput, interpret
from anychip_sdk.step import Step

Tensor = torch.Tensor
Tensors = tuple[Tensor, ...]
#: numbers of tokens that pieces are captured for
SIZES = (1, 2, 4, 8, 16)


class CapturedPiece:
    """Keeps buffers for a few numbers of tokens up to the most rows, as a captured graph does.

    A smaller step is padded to the next size; one that is larger than all of them runs as it is.
    """

    def __init__(self, program: Program, context: CompileContext) -> None:
        self._run = interpret(program, context.values, context.limits)
        self._sizes = [size for size in SIZES if size <= context.limits.rows]
        self._buffers: dict[int, Tensors] = {}

    def __call__(self, step: Step, *inputs: Tensor) -> Tensors:
        if step.tokens > self._sizes[-1]:
            return self._run(step, *inputs)
        if not self._buffers:
            self._capture(inputs)
        size = next(size for size in self._sizes if size >= step.tokens)
        self.fill(self._buffers[size], inputs)
        return tuple(self.cut(out, step.tokens) for out in self._run(step, *self._buffers[size]))

    def _capture(self, inputs: Tensors) -> None:
        """Every size at once, filled with the rows of the first step again and again."""
        for size in self._sizes:
            self._buffers[size] = tuple(one[torch.arange(size, device=one.device) % len(one)] for one in inputs)

    def fill(self, buffers: Tensors, inputs: Tensors) -> None:
        for buffer, value in zip(buffers, inputs, strict=True):
            buffer[: len(value)].copy_(value)

    def cut(self, out: Tensor, tokens: int) -> Tensor:
        return out[:tokens]


class CapturingPlugin(FusingPlugin):
    """Healthy, with a compiler that captures the calls that have a row per token and read nothing of the step."""

    piece = CapturedPiece

    @hookimpl
    def anychip_compiles(self, program: Program) -> list[str | None]:
        return [None if _is_captured(call) else "it is not captured" for call in program.calls]

    @hookimpl
    def anychip_compile(self, program: Program, context: CompileContext) -> Compiled:
        return self.piece(program, context)


def _is_captured(call: Call) -> bool:
    return call.rows == "tokens" and not any(isinstance(one, StepInput) for one in call.args)


healthy("AC-GRAPH-010", CapturingPlugin, CLAIMS)
healthy("AC-GRAPH-011", FusingPlugin, CLAIMS)


class _Kept(CapturedPiece):
    def fill(self, buffers: Tensors, inputs: Tensors) -> None:
        pass


@mutant("AC-GRAPH-010", claims=CLAIMS)
class CapturedStepsKeepTheFirstTensors(CapturingPlugin):
    """A graph is replayed on the tensors of the step that it was captured with."""

    piece = _Kept


class _KeptWherePadded(CapturedPiece):
    def fill(self, buffers: Tensors, inputs: Tensors) -> None:
        if len(buffers[0]) == len(inputs[0]):
            super().fill(buffers, inputs)


@mutant("AC-GRAPH-010", claims=CLAIMS)
class PaddedStepsKeepOldTensors(CapturingPlugin):
    """A graph gets its inputs where the step fills it; one that must be padded reads what was there before."""

    piece = _KeptWherePadded


class _LastRows(CapturedPiece):
    def cut(self, out: Tensor, tokens: int) -> Tensor:
        return out[-tokens:]


@mutant("AC-GRAPH-010", claims=CLAIMS)
class PaddedStepsReturnTheirPadding(CapturingPlugin):
    """Of a padded step the last rows are returned instead of the first."""

    piece = _LastRows


class _Uncut(CapturedPiece):
    def cut(self, out: Tensor, tokens: int) -> Tensor:
        return out


@mutant("AC-GRAPH-010", claims=CLAIMS)
class PaddedStepsAreNotCut(CapturingPlugin):
    """A padded step returns the rows of its padding as well."""

    piece = _Uncut


class _LosesTheLastRow(CapturedPiece):
    def cut(self, out: Tensor, tokens: int) -> Tensor:
        return out[:tokens] if tokens < self._sizes[-1] else torch.cat((out[:-1], out[:1]))


@mutant("AC-GRAPH-010", claims=CLAIMS)
class FullStepsLoseTheirLastRow(CapturingPlugin):
    """In a step of as many rows as the limits allow the last one is the first one's."""

    piece = _LosesTheLastRow


@mutant("AC-GRAPH-010", claims=CLAIMS)
class CompiledPiecesKeepTheirAnswer(FusingPlugin):
    """A captured piece replays its first answer, whatever its inputs are."""

    @hookimpl
    def anychip_compile(self, program: Program, context: CompileContext) -> Compiled:
        run = interpret(program, context.values, context.limits)
        kept: list[tuple[Tensor, ...]] = []

        def replay(*inputs: Any) -> tuple[Tensor, ...]:
            kept.append(kept[0] if kept else run(*inputs))
            return kept[0]

        return replay


@mutant("AC-GRAPH-010", claims=CLAIMS)
class CompiledPiecesKeepTheirInputs(FusingPlugin):
    """A captured piece reads the values that came with its first step; the step itself it reads anew."""

    @hookimpl
    def anychip_compile(self, program: Program, context: CompileContext) -> Compiled:
        run = interpret(program, context.values, context.limits)
        kept: list[tuple[Tensor, ...]] = []

        def replay(step: Step, *inputs: Tensor) -> tuple[Tensor, ...]:
            if not kept:
                kept.append(tuple(one.clone() for one in inputs))
            fits = all(old.shape == new.shape for old, new in zip(kept[0], inputs, strict=True))
            return run(step, *(kept[0] if fits else inputs))

        return replay


@mutant("AC-GRAPH-010", claims=CLAIMS)
class CompiledPiecesSwapTheirOutputs(FusingPlugin):
    """A piece with several outputs returns them in the reverse order."""

    @hookimpl
    def anychip_compile(self, program: Program, context: CompileContext) -> Compiled:
        run = interpret(program, context.values, context.limits)

        def swapped(*inputs: Any) -> tuple[Tensor, ...]:
            return run(*inputs)[::-1]

        return swapped


@mutant("AC-GRAPH-010", claims=CLAIMS)
class CompiledPiecesDropACall(FusingPlugin):
    """A piece leaves out a sum, and gives one of its terms."""

    @hookimpl
    def anychip_compile(self, program: Program, context: CompileContext) -> Compiled:
        calls = tuple(
            replace(call, op="view", args=(call.args[0], -1, program.shapes[call.makes[0]][1]), bound=None)
            if call.op == "add"
            else call
            for call in program.calls
        )
        return interpret(replace(program, calls=calls), context.values, context.limits)


@mutant("AC-GRAPH-011", claims=CLAIMS)
class CompilerChangesItsMind(FusingPlugin):
    """Which calls are taken depends on how often one has asked."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.times = 0

    @hookimpl
    def anychip_compiles(self, program: Program) -> list[str | None]:
        self.times += 1
        return [None if self.times % 2 else "not today"] * len(program.calls)


@mutant("AC-GRAPH-011", claims=CLAIMS)
class CompilerTakesWhatItCannotCompile(HealthyPlugin):
    """It takes every call and compiles no piece."""

    @hookimpl
    def anychip_compiles(self, program: Program) -> list[str | None]:
        return [None] * len(program.calls)

    @hookimpl
    def anychip_compile(self, program: Program, context: CompileContext) -> Compiled | None:
        return None


__all__ = ["CapturedPiece", "CapturingPlugin"]
