"""Pieces as one native call, for steps of very many tokens as generated Python. Knows which is which; knows no op."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Lock

import torch

from anychip_cpu import native
from anychip_cpu.programs.instructions import CannotTranslateError
from anychip_cpu.programs.program import NativeProgram
from anychip_cpu.programs.refused import refusals
from anychip_cpu.programs.translate import Output, Translated, translate
from anychip_sdk.hooks import CompileContext
from anychip_sdk.program import Program
from anychip_sdk.step import Step

Results = tuple[torch.Tensor, ...]

#: holds a chunk of a prompt and the decodes beside it; what a step makes lies in memory for so many
TOKENS_MAX = 1024

log = logging.getLogger(__name__)


class Compiled:
    """A piece of a forward, or all of it.

    Args:
        program: runs steps of up to so many tokens as it has memory for.
        translated: what it was made from.
        generated: runs all others.
    """

    def __init__(self, program: NativeProgram, translated: Translated, generated: Callable[..., Results]) -> None:
        self.program = program
        self.generated = generated
        self._inputs, self._outputs = translated.inputs, translated.outputs
        self._vocabulary, self._logits_rows = translated.vocabulary, translated.logits_rows
        self._is_whole = not self._inputs and [one.tensor for one in self._outputs] == [None]
        self._lock = Lock()  # inputs and outputs lie in the program's own memory until they are copied

    def __call__(self, step: Step, *inputs: torch.Tensor) -> Results:
        most = self.program.tokens
        if step.tokens > most or len(step.logit_rows) > most or step.embeddings is not None:
            return self.generated(step, *inputs)
        logits = self._place(step)
        if self._is_whole and logits is not None:
            self.program(step, logits)
            return (logits,)
        with self._lock:
            for place, value in zip(self._inputs, inputs, strict=True):
                place[: len(value)].copy_(value)
            self.program(step, logits)
            return tuple(self._output(one, step, logits) for one in self._outputs)

    def _place(self, step: Step) -> torch.Tensor | None:
        """Where the logits go."""
        if not self._vocabulary:
            return None
        rows = step.tokens if self._logits_rows == "tokens" else len(step.logit_rows)
        return torch.empty((rows, self._vocabulary), dtype=torch.float32)

    def _output(self, output: Output, step: Step, logits: torch.Tensor | None) -> torch.Tensor:
        if output.tensor is None:
            assert logits is not None
            return logits
        if not output.rows:
            return output.tensor  # a state
        rows = step.tokens if output.rows == "tokens" else len(step.logit_rows)
        return output.tensor[:rows].clone()


def compiled(piece: Program, context: CompileContext) -> Compiled | None:
    """The piece as a native program; None where the library can't run all of it."""
    library = native.library()
    refused = [reason for reason in refusals(piece) if reason is not None]
    if refused or isinstance(library, native.Absent):
        log.info("a piece of %d calls runs as generated Python: %s", len(piece.calls), refused[0])
        return None
    tokens = min(TOKENS_MAX, context.limits.tokens)
    try:
        translated = translate(piece, context.values, tokens)
    except CannotTranslateError as error:
        log.info("a piece of %d calls runs as generated Python: %s", len(piece.calls), error)
        return None
    instructions = translated.instructions
    log.info("steps of up to %d tokens are one native program of %d instructions", tokens, len(instructions))
    return Compiled(NativeProgram(library, instructions, translated.held, tokens), translated, context.generated)


__all__ = ["TOKENS_MAX", "Compiled", "compiled"]
