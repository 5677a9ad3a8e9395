"""Requirements of a backend's own compiler: its pieces run what the program says, with any input. Serves nobody."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from anychip.conformance.graph import SERVED, layer, model_dtypes
from anychip.conformance.layer import VOCAB, Layer, distance
from anychip.graph.ir import ModelGraph
from anychip.graph.program import KERNELS_MIN, cut, program_of
from anychip.graph.verify import ROUNDINGS, STEP_ROWS, free_step, step_of
from anychip_sdk.conformance.claims import Claims
from anychip_sdk.conformance.context import Context
from anychip_sdk.conformance.requirements import Case, Level, expect, requirement
from anychip_sdk.fusion import policies_with
from anychip_sdk.hooks import CompileContext
from anychip_sdk.kv import KVPool
from anychip_sdk.program import Program, interpret
from anychip_sdk.step import Step, StepLimits

Tensors = tuple[torch.Tensor, ...]
Rows = tuple[tuple[int, int], ...]  #: new tokens and tokens in all of a step's rows


def _decodes(count: int) -> Rows:
    return tuple((1, 2 + at) for at in range(count))


#: the steps that a compiled piece runs one after the other: some fill what was made for the limits, some leave room
#: that is padded, some are more tokens than rows; and each kind comes again with other tokens
STEPS: tuple[Rows, ...] = (
    _decodes(3),
    _decodes(3),
    _decodes(1),
    STEP_ROWS,
    STEP_ROWS,
    _decodes(8),
    _decodes(5),
    _decodes(2),
    ((1, 7), (5, 9), (16, 16)),
    _decodes(8),
    _decodes(7),
    _decodes(1),
)
#: what a compiler may make its buffers for: more tokens and pages than any of the steps has, and as many rows as one
TOKENS_MAX, ROWS_MAX, PAGES_MAX = 32, 8, 4


def _dtypes(claims: Claims, level: Level) -> Iterable[Case]:
    return [Case(dtype, {"dtype": dtype}) for dtype in model_dtypes(claims)]


def _policies(claims: Claims, level: Level) -> Iterable[Case]:
    for dtype in model_dtypes(claims):
        for fused in (True, False):
            yield Case(f"{'fused' if fused else 'unfused'}-{dtype}", {"dtype": dtype, "fused": fused})


@requirement(
    "AC-GRAPH-010",
    level="MUST",
    text="What anychip_compile returns for a piece MUST give what the piece's calls give one by one, again and "
    "again as inputs and numbers of rows change, for every step within the limits and wherever a program is cut.",
    covers=("hook:anychip_compile",),
    cases=_policies,
)
def compiled_pieces_follow_their_inputs(context: Context, case: Case) -> None:
    one = layer(context, case, SERVED)
    graph, _ = one.fused(policies_with(context.backend.fusions) if case.params["fused"] else ())
    program = program_of(graph)
    context.measured["pieces"] = 0
    with _ready(one, graph) as (pool, values):
        for start, stop in _spans(context, program):
            context.measured["pieces"] += 1
            _compare(context, one, pool, values, program, (start, stop))


@requirement(
    "AC-GRAPH-011",
    level="MUST",
    text="anychip_compiles MUST say the same of a program each time, and anychip_compile MUST compile what it takes.",
    covers=("hook:anychip_compiles",),
    cases=_dtypes,
)
def taken_calls_are_compiled(context: Context, case: Case) -> None:
    one = layer(context, case, SERVED)
    graph, _ = one.fused(policies_with(context.backend.fusions))
    program = program_of(graph)
    first, again = context.backend.compiles(program), context.backend.compiles(program)
    expect(first == again, "anychip_compiles gives two answers for one program", first=first, second=again)
    with _ready(one, graph) as (_, values):
        for start, stop in cut(program, first).spans:
            piece = program.piece(start, stop)
            compiled = context.backend.compile(piece, _asked(context, one, piece, values))
            expect(compiled is not None, f"calls {start} to {stop} are taken, and anychip_compile returns None")


def _spans(context: Context, program: Program) -> list[tuple[int, int]]:
    """The backend's pieces, and parts of them: a longer program may be cut anywhere."""
    spans = list(cut(program, context.backend.compiles(program)).spans)
    parts = []
    for start, stop in spans:
        middle = (start + stop) // 2
        parts += [(start, middle), (middle, stop)]
    return [*spans, *((start, stop) for start, stop in parts if stop - start >= KERNELS_MIN)]


def _compare(
    context: Context, one: Layer, pool: KVPool, values: dict[str, Any], program: Program, span: tuple[int, int]
) -> None:
    piece = program.piece(*span)
    compiled = context.backend.compile(piece, _asked(context, one, piece, values))
    if compiled is None:
        return
    for number in range(context.scaled(len(STEPS), 5 * len(STEPS))):
        step = _step(context, pool, number)
        try:
            with torch.inference_mode():
                before = _inputs(program, span, values, step)
                given = [value.clone() for value in before]
                expected = _copies(interpret(piece, values, step.limits())(step, *before))
                got = _copies(compiled(step, *given))
            context.device.synchronize()
        finally:
            free_step(pool, step)
        expect(len(got) == len(expected), f"a piece with {len(expected)} outputs returned {len(got)}")
        error = distance([value.cpu() for value in got], [value.cpu().double() for value in expected])
        expect(
            error <= ROUNDINGS * torch.finfo(one.dtype).eps,
            f"run {number} of calls {span[0]} to {span[1]}, compiled, is off by {error:.2e} of the largest value; its "
            f"step has {step.tokens} tokens in {step.rows} rows",
            got=[value.cpu() for value in got],
            expected=[value.cpu() for value in expected],
        )


def _step(context: Context, pool: KVPool, number: int) -> Step:
    """The step of a run: other tokens each time, and in every other run the logits of each row's last token only."""
    rows = STEPS[number % len(STEPS)]
    tokens = sum(length for length, _ in rows)
    step = step_of(pool, context.device, number % (VOCAB - tokens), rows)
    return replace(step, logit_rows=step.query_start[1:].long() - 1) if number % 2 else step


def _inputs(program: Program, span: tuple[int, int], values: dict[str, Any], step: Step) -> Tensors:
    """What the calls before a piece give it."""
    start, _ = span
    wanted = program.piece(*span).inputs
    if not wanted:
        return ()
    head = program.piece(0, start)
    found = dict(zip(head.outputs, interpret(head, values, step.limits())(step), strict=True))
    return tuple(found[name] for name in wanted)


def _copies(values: Tensors) -> Tensors:
    """A piece may return views of buffers that its next run writes."""
    return tuple(value.clone() for value in values)


def _asked(context: Context, one: Layer, piece: Program, values: dict[str, Any]) -> CompileContext:
    limits = StepLimits(TOKENS_MAX, ROWS_MAX, PAGES_MAX, context.device.torch_device)
    return CompileContext(context.device, one.dtype, values, limits, interpret(piece, values, limits))


@contextmanager
def _ready(one: Layer, graph: ModelGraph) -> Iterator[tuple[KVPool, dict[str, Any]]]:
    """A pool for the graph's states, and its constants."""
    pool = one.make_pool(graph.groups, ROWS_MAX)
    try:
        yield pool, one.run.values(graph, one.dtype, one.sources, pool)
    finally:
        pool.close()


__all__ = ["ROWS_MAX", "STEPS", "compiled_pieces_follow_their_inputs", "taken_calls_are_compiled"]
