"""What lies between the attention blocks, captured once and replayed. Knows graphs and sizes; knows no op's meaning.

Only what has a row per token and reads nothing of the step is captured, for a few numbers of tokens; smaller steps are
padded to the next. A capture is used if its replay gives what the same code gave without it: on some releases of the
stack replays are garbled.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch

from anychip_kunlun.stack import Stack
from anychip_kunlun.vendor import VendorOps
from anychip_sdk.hooks import CompileContext
from anychip_sdk.program import Call, Program, StepInput, interpret
from anychip_sdk.step import Step

#: asks for it; off by default, since the stack's replays can't be trusted everywhere
VARIABLE = "ANYCHIP_KUNLUN_GRAPHS"
#: what the stack wants to be told before torch is imported
STACK_VARIABLE = "XMLIR_FORCE_USE_XPU_GRAPH"
#: numbers of tokens that are captured
SIZES = (1, 2, 4, 8, 16, 32, 64)
#: how far a replay may be off, in roundings of the largest number
ROUNDINGS = 8.0

log = logging.getLogger("anychip_kunlun")


@dataclass(frozen=True)
class Captured:
    graph: Any
    inputs: tuple[torch.Tensor, ...]
    outputs: tuple[torch.Tensor, ...]


def graphs_wanted(stack: Stack) -> bool:
    """Whether the user asked for captured graphs."""
    return stack.environ.get(VARIABLE, "0") not in ("", "0")


def refusals(program: Program) -> list[str | None]:
    """None for each call that has a row per token and nothing of the step; why not, for the others."""
    return [_why_not(call) for call in program.calls]


def _why_not(call: Call) -> str | None:
    if call.rows == "logits":
        return "its rows are those whose logits are wanted, not tokens"
    if any(isinstance(one, StepInput) for one in call.args):
        return "it reads what the step's sequences are"
    if call.bound is not None and call.bound.compute_dtype is not None:
        return "it is computed in another dtype than the model's"
    return None


class Trust:
    """Whether replays are used: all pieces stop with the first that replays wrongly or can't be captured."""

    def __init__(self) -> None:
        self.is_held = True

    def lose(self, why: str) -> None:
        log.warning("graphs are not used: %s", why)
        self.is_held = False


class CapturedPiece:
    """Runs a piece of a forward by replaying it; steps that are too large, or where replays are wrong, as it is."""

    def __init__(self, program: Program, context: CompileContext, vendor: VendorOps, trust: Trust) -> None:
        self._run = interpret(program, context.values, context.limits)
        self._generated = context.generated
        self._name = f"{program.calls[0].op} to {program.calls[-1].op}"
        self._vendor = vendor
        self._trust = trust
        self._sizes = tuple(size for size in SIZES if size <= max(1, context.limits.rows))
        self._captured: dict[int, Captured] = {}

    def __call__(self, step: Step, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        tokens = step.tokens
        if tokens > self._sizes[-1] or not self._is_captured(step, inputs):
            return self._generated(step, *inputs)
        found = self._captured[next(size for size in self._sizes if size >= tokens)]
        for buffer, value in zip(found.inputs, inputs, strict=True):
            buffer[:tokens].copy_(value)
        self._vendor.trail.last_op = f"a captured graph ({self._name})"
        found.graph.replay()
        return tuple(out[:tokens] for out in found.outputs)

    def _is_captured(self, step: Step, inputs: tuple[torch.Tensor, ...]) -> bool:
        """Captures every size at once, in the warm-up: a capture while serving would be a slow step."""
        if self._trust.is_held and not self._captured:
            self._capture_all(step, inputs)
        if not self._trust.is_held:
            self._captured.clear()
        return self._trust.is_held

    def _capture_all(self, step: Step, inputs: tuple[torch.Tensor, ...]) -> None:
        for size in self._sizes:
            try:
                captured = self._capture(size, step, inputs)
            except RuntimeError as error:
                self._trust.lose(f"capturing {self._name} failed: {error}")
                return
            if captured is None:
                self._trust.lose(f"the replay of {self._name} with {size} tokens is not what the same code gives")
                return
            self._captured[size] = captured

    def _capture(self, size: int, step: Step, inputs: tuple[torch.Tensor, ...]) -> Captured | None:
        """The graph for so many tokens; None where its replay differs."""
        buffers = tuple(_repeated(value, size) for value in inputs)
        expected = self._run(step, *buffers)
        graph = self._vendor.stack.accelerator.CUDAGraph()
        with self._vendor.stack.accelerator.graph(graph):
            outputs = self._run(step, *buffers)
        graph.replay()
        right = all(_is_near(*pair) for pair in zip(outputs, expected, strict=True))
        return Captured(graph, buffers, outputs) if right else None


def _repeated(value: torch.Tensor, size: int) -> torch.Tensor:
    """A buffer of `size` rows that holds the rows of `value`, again and again."""
    rows = torch.arange(size, device=value.device) % len(value)
    return value.index_select(0, rows)


def _is_near(got: torch.Tensor, expected: torch.Tensor) -> bool:
    if not expected.is_floating_point():
        return torch.equal(got, expected)
    bound = ROUNDINGS * torch.finfo(expected.dtype).eps * float(expected.abs().max())
    return bool((got - expected).abs().max() <= bound)


__all__ = ["SIZES", "STACK_VARIABLE", "VARIABLE", "CapturedPiece", "Trust", "graphs_wanted", "refusals"]
