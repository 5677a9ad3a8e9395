"""Rehearsed steps are real ones, and a device is measured through the ops of its backend. Knows no speed."""

import pytest
import torch

from anychip.forecast.costs import StepShape, costs_of
from anychip.measure import measure as measuring
from anychip.measure import memory_speed
from anychip.measure.random_model import load_random, plan_random
from anychip.measure.rehearsal import Rehearsal
from anychip_sdk.backend import Backend
from anychip_sdk.device import DeviceConfig
from support.plans import TINY, references, stub_backend

RAW = {"architectures": ["Qwen3ForCausalLM"], **TINY}
RECIPE = {
    "model": {"source": "./m", "dtype": "float32"},
    "backend": {"name": "stub"},
    "memory": {"kv_tokens": 2048},
    "scheduler": {"chunked_prefill_size": 64, "prefix_cache": False},
}


@pytest.fixture
def backend():
    return stub_backend(dtypes=(torch.float32, torch.bfloat16, torch.float16))


@pytest.fixture
def model(backend):
    device = backend.probe()[0]
    loaded = load_random(plan_random(RAW, RECIPE, backend, device), backend, backend.open(device, DeviceConfig()))
    yield loaded.generated
    loaded.generated.close()


def test_a_rehearsed_decode_has_the_context_that_it_says(model):
    rehearsal = Rehearsal(model)
    seen = []
    forward = rehearsal.core._model.forward._forward
    rehearsal.core._model.forward._forward = lambda step: (seen.append(step), forward(step))[1]
    steps = [step for step, _ in rehearsal.time(StepShape(3, 200), 4)]
    assert [batch.decode_rows for batch in seen] == [3] * 4
    for step, batch in zip(steps, seen, strict=True):
        assert step.context == pytest.approx(sum(batch.context_lens_host) / 3, abs=1)
        assert 200 < step.context < 220


def test_a_rehearsed_prompt_is_one_chunk_behind_the_others(model):
    rehearsal = Rehearsal(model)
    seen = []
    forward = rehearsal.core._model.forward._forward
    rehearsal.core._model.forward._forward = lambda step: (seen.append(step), forward(step))[1]
    assert [step for step, _ in rehearsal.time(StepShape(0, prompt=64, start=128), 2)] == [
        StepShape(0, prompt=64, start=128)
    ] * 2
    assert [(batch.query_lens_host, batch.context_lens_host) for batch in seen] == [((64,), (192,))] * 2


def test_nothing_is_left_behind(model):
    rehearsal = Rehearsal(model)
    list(rehearsal.time(StepShape(2, 100), 2))
    stats = rehearsal.core.stats()
    assert (stats["running"], stats["waiting"], stats["pages_free"]) == (0, 0, stats["pages_total"])


def test_a_rehearsal_that_is_left_leaves_nothing_behind(model):
    rehearsal = Rehearsal(model)
    steps = rehearsal.time(StepShape(2, 100), 5)
    next(steps)
    steps.close()
    assert not rehearsal.core.has_work


@pytest.fixture
def memory(monkeypatch):
    """How fast memory is, as a list that is worked off; 10 GB/s when it is empty."""
    looks = []
    monkeypatch.setattr(memory_speed, "COPIED_BYTES", 1024)
    monkeypatch.setattr(memory_speed.MemoryClock, "bytes_per_s", lambda _: looks.pop(0) if looks else 1e10)
    return looks


def test_every_kernel_of_a_plan_is_measured(backend, memory, monkeypatch):
    few = (StepShape(1, 16), StepShape(2, 16), StepShape(0, prompt=32))
    raw = {**RAW, "num_hidden_layers": 1}
    monkeypatch.setattr(measuring, "SHAPES", {"narrow": raw, "wide": {**raw, "hidden_size": 128}})
    monkeypatch.setattr(measuring, "QUANTIZATIONS", ("none", "int8"))
    monkeypatch.setattr(measuring, "POLICIES", {"all fusions": "auto"})
    monkeypatch.setattr(measuring, "STEPS", {"narrow": few, "wide": few})
    monkeypatch.setattr(measuring, "CHUNK", 32)
    monkeypatch.setattr(measuring, "DECODES", (0, 2))
    monkeypatch.setattr(measuring, "PROMPTS", (0, 2))
    said = []
    [speeds] = measuring.measure(backend, backend.probe()[0], None, said.append)
    assert speeds.source.startswith("measured on this machine, 20")
    assert speeds.memory_bytes_per_s == 1e10
    assert said[:2] == ["narrow, float32, all fusions", "wide, float32, all fusions"]
    assert {text.split(", ")[1] for text in said} == {"float32", "int8"}
    plan = plan_random(RAW, RECIPE, backend, backend.probe()[0])
    assert costs_of(plan).unknown(speeds) == ()
    assert costs_of(plan).seconds(speeds, StepShape(2, 64)).total > 0


@pytest.fixture
def compiler(monkeypatch):
    """The backend compiles every program whole, and leaves steps of more than two tokens to the generated Python."""
    compiled = []

    def compile_program(_self, _program, context):
        def run(step):
            if step.tokens <= 2:
                compiled.append(step.tokens)
                return (torch.zeros(len(step.logit_rows), TINY["vocab_size"]),)
            return context.generated(step)

        return run

    monkeypatch.setattr(Backend, "compiles", lambda _self, program: (None,) * len(program.calls))
    monkeypatch.setattr(Backend, "compile", compile_program)
    return compiled


def test_steps_are_run_again_that_memory_was_too_fast_for(backend, memory, monkeypatch):
    monkeypatch.setattr(measuring, "SHAPES", {"narrow": {**RAW, "num_hidden_layers": 1}})
    monkeypatch.setattr(measuring, "STEPS", {"narrow": (StepShape(1, 16), StepShape(2, 16), StepShape(3, 16))})
    monkeypatch.setattr(measuring, "QUANTIZATIONS", ("none",))
    monkeypatch.setattr(measuring, "POLICIES", {"all fusions": "auto"})
    memory += [2e10, 2e10]  # beside the first step
    said = []
    [speeds] = measuring.measure(backend, backend.probe()[0], None, said.append)
    assert said == ["narrow, float32, all fusions"] * 2
    assert speeds.memory_bytes_per_s == 1e10


def test_a_compiled_graph_is_measured_as_one_kernel_where_it_runs(backend, memory, compiler, monkeypatch):
    few = (StepShape(1, 16), StepShape(2, 16), StepShape(3, 16), StepShape(0, prompt=32))
    monkeypatch.setattr(measuring, "SHAPES", {"narrow": {**RAW, "num_hidden_layers": 1}})
    monkeypatch.setattr(measuring, "STEPS", {"narrow": few})
    monkeypatch.setattr(measuring, "CHUNK", 32)
    monkeypatch.setattr(measuring, "QUANTIZATIONS", ("none",))
    monkeypatch.setattr(measuring, "POLICIES", {"all fusions": "auto"})
    [speeds] = measuring.measure(backend, backend.probe()[0], None, lambda _: None)
    assert set(compiler) == {1, 2}
    assert speeds.compiled_tokens == 2
    assert {"mha", "ffn", "lm_head"} <= set(speeds.compiled_ops)
    costs = costs_of(plan_random(RAW, RECIPE, backend, backend.probe()[0]))
    assert costs.seconds(speeds, StepShape(2, 16)).total < costs.seconds(speeds, StepShape(3, 16)).total / 2


def test_integers_on_the_references_are_left_out(monkeypatch):
    monkeypatch.setattr(measuring, "SHAPES", {"narrow": RAW, "wide": RAW})
    backend = stub_backend(kernels=references("linear_int8", "linear_int4"), dtypes=(torch.float32,))
    runs = measuring._runs(backend, backend.probe()[0], None)
    assert {run.what.split(", ")[1] for run in runs} == {"float32"}
