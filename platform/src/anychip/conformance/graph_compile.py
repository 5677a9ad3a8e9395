"""Requirement of a backend's own compiler: it runs what the graph says, with any input. Knows graphs; serves nobody."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from anychip.conformance.graph import SERVED, layer, model_dtypes
from anychip.conformance.layer import distance
from anychip.graph.codegen import generate
from anychip.graph.fusions import ORDER
from anychip.graph.verify import ROUNDINGS, step_inputs
from anychip_sdk.conformance.claims import Claims
from anychip_sdk.conformance.context import Context
from anychip_sdk.conformance.requirements import Case, Level, expect, requirement
from anychip_sdk.hooks import CompileContext

TOKENS, ROWS = 6, 2  #: of one step of `step_inputs`
FIRST_TOKENS = 24


def _dtypes(claims: Claims, level: Level) -> Iterable[Case]:
    return [Case(dtype, {"dtype": dtype}) for dtype in model_dtypes(claims)]


@requirement(
    "AC-GRAPH-010",
    level="MUST",
    text="What anychip_compile returns MUST give what the generated code gives, again and again as its inputs change.",
    covers=("hook:anychip_compile", "capability:graph_capture"),
    cases=_dtypes,
)
def compiled_graphs_follow_their_inputs(context: Context, case: Case) -> None:
    one = layer(context, case, SERVED)
    graph, _ = one.fused(ORDER)
    pool = one.make_pool()
    try:
        values = one.run.values(graph, one.dtype, one.sources, pool)
        plain = generate(graph, values).forward
        asked = CompileContext(context.device, one.dtype, values, TOKENS, ROWS, plain)
        compiled = context.backend.compile(graph.graph, asked)
        context.measured["compiled"] = float(compiled is not None)
        if compiled is None:
            return
        for number in range(context.scaled(20, 100)):
            inputs = step_inputs(pool, context.device, number % FIRST_TOKENS)
            try:
                with torch.inference_mode():
                    expected, got = plain(*inputs).clone(), compiled(*inputs).clone()
                context.device.synchronize()
            finally:
                pool.free(inputs[3].page_table.flatten().tolist())
            error = distance([got.cpu()], [expected.cpu().double()])
            expect(
                error <= ROUNDINGS * torch.finfo(one.dtype).eps,
                f"run {number} of the compiled graph is off by {error:.2e} of the largest logit",
                got=got.cpu(),
                expected=expected.cpu(),
            )
    finally:
        pool.close()


__all__ = ["compiled_graphs_follow_their_inputs"]
