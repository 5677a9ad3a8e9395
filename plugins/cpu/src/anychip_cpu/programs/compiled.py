"""Steps as one native call, those of very many tokens as generated Python. Knows which is which; knows no op."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from anychip_cpu import host, native
from anychip_cpu.programs.instructions import CannotTranslateError
from anychip_cpu.programs.program import Program
from anychip_cpu.programs.translate import translate
from anychip_sdk.hooks import CompileContext
from anychip_sdk.ops.base import AttentionBatch

#: holds a chunk of a prompt and the decodes beside it; what a step makes lies in memory for so many
TOKENS_MAX = 1024

log = logging.getLogger(__name__)


class Compiled:
    """A forward of a model.

    Args:
        program: runs steps of up to so many tokens as it has memory for.
        generated: runs all others.
    """

    def __init__(self, program: Program, generated: Callable[..., Any]) -> None:
        self.program = program
        self.generated = generated

    def __call__(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        batch: AttentionBatch,
        logit_rows: torch.Tensor,
    ) -> Any:
        run = self.program if len(token_ids) <= self.program.tokens else self.generated
        return run(token_ids, positions, slots, batch, logit_rows)


def compiled(graph: fx.Graph, context: CompileContext) -> Callable[..., Any] | None:
    """The graph as a native program; None where the library can't run all of it."""
    library = native.library()
    if isinstance(library, native.Absent) or context.generated is None:
        return None
    if "amx_bf16" in host.instruction_sets() and context.dtype == torch.bfloat16:
        return None  # prefill rows go to torch there, and which way a row takes must not depend on its mates
    tokens = min(TOKENS_MAX, context.max_tokens)
    try:
        translated = translate(graph, context, tokens)
    except CannotTranslateError as error:
        log.info("steps run as generated Python: %s", error)
        return None
    log.info("steps of up to %d tokens are one native program of %d instructions", tokens, len(translated.instructions))
    program = Program(library, *translated[:2], tokens, translated.outputs)
    return Compiled(program, context.generated)


__all__ = ["TOKENS_MAX", "Compiled", "compiled"]
