"""AC-GRAPH-010 replays what the stack captured, and finds replays that are stale. Knows the emulator's graphs."""

import pytest

from anychip.conformance.graph_compile import ROWS_MAX, STEPS
from anychip_kunlun.emulator.accelerator import Graph
from anychip_kunlun.graphs import SIZES, STACK_VARIABLE, VARIABLE, CapturedPiece
from support.platform_checks import ALL_FUSIONS, claims, run

KEY = "AC-GRAPH-010"
CAPTURED = [size for size in SIZES if size <= ROWS_MAX]
#: steps that are no larger than the largest capture
REPLAYED = sum(sum(length for length, _ in rows) <= CAPTURED[-1] for rows in STEPS)


@pytest.fixture
def checked(make_rig, tmp_path):
    """Judges a rig with graphs asked for: case -> what is violated; and how often its graphs were replayed."""

    def check(dtype="float32"):
        rig = make_rig()
        rig.stack.environ[VARIABLE] = "1"
        rig.stack.environ[STACK_VARIABLE] = rig.plugin.anychip_backend().environment[STACK_VARIABLE]
        results = list(run(KEY, rig.backend, claims(rig.backend, [dtype], ALL_FUSIONS), tmp_path))
        pieces = sum(int(context.measured["pieces"]) for *_, context in results)
        return {name: problem for name, problem, _ in results}, rig.machine.launches.get("graph_replay", 0), pieces

    return check


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_step_that_fits_is_a_replay_of_what_was_captured(checked, dtype):
    problems, replays, pieces = checked(dtype)
    assert problems == {f"fused-{dtype}": "", f"unfused-{dtype}": ""}
    assert pieces > 2
    assert len(STEPS) > REPLAYED > 5
    assert replays == pieces * (len(CAPTURED) + REPLAYED)  # a trial for each size, then the steps


def violated(problems):
    assert set(problems) == {"fused-float32", "unfused-float32"}
    return [problem for problem in problems.values() if "compiled, is off by" in problem]


def test_a_graph_that_keeps_the_first_steps_tensors_is_found(checked, monkeypatch):
    """It is right in its trial, whose tensors are those of the capture."""
    replay, seen = Graph.replay, set()

    def once(graph):
        if graph not in seen:
            seen.add(graph)
            replay(graph)

    monkeypatch.setattr(Graph, "replay", once)
    assert len(violated(checked()[0])) == 2


def test_a_replay_that_is_not_given_the_steps_inputs_is_found(checked, monkeypatch):
    def stale(piece, step, *inputs):
        if step.tokens > piece._sizes[-1] or not piece._is_captured(step, inputs):
            return piece._generated(step, *inputs)
        found = piece._captured[next(size for size in piece._sizes if size >= step.tokens)]
        found.graph.replay()
        return tuple(out[: step.tokens] for out in found.outputs)

    monkeypatch.setattr(CapturedPiece, "__call__", stale)
    assert len(violated(checked()[0])) == 2
