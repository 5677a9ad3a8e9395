"""Requirements of a backend's own compiler: its pieces run what the program says, with any input. Serves nobody."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from anychip.conformance.graph import SERVED, layer, model_dtypes
from anychip.conformance.layer import Layer, distance
from anychip.graph.ir import ModelGraph
from anychip.graph.program import KERNELS_MIN, cut, program_of
from anychip.graph.verify import ROUNDINGS, free_step, step_of
from anychip_sdk.conformance.claims import Claims
from anychip_sdk.conformance.context import Context
from anychip_sdk.conformance.requirements import Case, Level, expect, requirement
from anychip_sdk.fusion import policies_with
from anychip_sdk.hooks import CompileContext
from anychip_sdk.kv import KVPool
from anychip_sdk.program import Program, interpret
from anychip_sdk.step import Step

FIRST_TOKENS = 24
Tensors = tuple[torch.Tensor, ...]


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
    "again as its inputs change, wherever a program is cut.",
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
    with _ready(one, graph) as (pool, values):
        for start, stop in cut(program, first).spans:
            piece = program.piece(start, stop)
            compiled = context.backend.compile(piece, _asked(context, one, pool, piece, values))
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
    compiled = context.backend.compile(piece, _asked(context, one, pool, piece, values))
    if compiled is None:
        return
    for number in range(context.scaled(6, 50)):
        step = step_of(pool, context.device, number % FIRST_TOKENS)
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
            f"run {number} of calls {span[0]} to {span[1]}, compiled, is off by {error:.2e} of the largest value",
            got=[value.cpu() for value in got],
            expected=[value.cpu() for value in expected],
        )


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


def _asked(context: Context, one: Layer, pool: KVPool, piece: Program, values: dict[str, Any]) -> CompileContext:
    step = step_of(pool, context.device)
    free_step(pool, step)
    limits = step.limits()
    return CompileContext(context.device, one.dtype, values, limits, interpret(piece, values, limits))


@contextmanager
def _ready(one: Layer, graph: ModelGraph) -> Iterator[tuple[KVPool, dict[str, Any]]]:
    """A pool for the graph's states, and its constants."""
    pool = one.make_pool(graph.groups)
    try:
        yield pool, one.run.values(graph, one.dtype, one.sources, pool)
    finally:
        pool.close()


__all__ = ["compiled_pieces_follow_their_inputs", "taken_calls_are_compiled"]
