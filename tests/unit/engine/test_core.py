"""The step loop: forks, aborts, copies, numbers and warm-up, on a tiny model. Knows no text and no process."""

import itertools
import os
from dataclasses import fields

import pytest
import torch
from structlog.testing import capture_logs

from anychip.engine.core import (
    FIRST_STEP_S,
    FIRST_STEPS,
    WARM_UP_ID,
    EngineCore,
    build_core,
    from_recipe_file,
    scheduler_config,
)
from anychip.engine.pulse import NUMBERS, Pulse, read_pulse, shared_memory
from anychip.engine.request import GenerateRequest, SamplingParams
from anychip.engine.seeds import derive_seed, uniform
from anychip.engine.step_cost import StepCost
from anychip.plan.make import prepare
from anychip.plan.plan import SchedulerPlan
from anychip_sdk.errors import CheckpointInvalid, RequestInvalid, UsageError
from support.engines import core_of, greedy, logits_of, make_recipe, quiet, random_prompts, run
from support.plans import plan_of, stub_backend, tiny_config
from support.tiny_models import make_tiny


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("tiny") / "llama", "llama", num_hidden_layers=2)


@pytest.fixture
def core(tiny):
    with core_of(make_recipe(tiny, scheduler={"chunked_prefill_size": 16})) as made:
        yield made


def test_without_work_a_step_does_nothing(core):
    assert not core.has_work
    assert core.step() == []
    assert core.stats()["step_seconds"] == 0


def test_it_tells_how_long_each_step_may_be_expected_to_take(tiny):
    pulse = Pulse(descriptor := shared_memory("test", NUMBERS.size))
    with core_of(make_recipe(tiny, scheduler={"chunked_prefill_size": 16})) as core:
        core.watch(pulse)
        core.warm_up()
        core.expect(StepCost(100.0, 1.0))
        core.add(greedy([list(range(5, 45))], FIRST_STEPS + 3)[0])
        told = []
        while core.has_work:
            core.step()
            told.append(read_pulse(descriptor).cost_s)
    os.close(descriptor)
    first = [116.0, 116.0, 108.0, *(100.0 for _ in range(FIRST_STEPS - 3))]
    alone = [*(cost_s + FIRST_STEP_S for cost_s in first), *(100.0 for _ in range(5))]
    expected = [now + before for now, before in itertools.pairwise([told[0] - alone[0], *alone])]
    assert told == pytest.approx(expected[: len(told)])


def test_what_the_warm_up_took_is_expected_where_nothing_is_predicted(core):
    assert core.cost == StepCost(0, 0)
    core.warm_up()
    core.expect(StepCost())
    assert core.cost.decodes_s > 0
    assert core.cost.token_s > 0
    assert core.cost.of(100) > core.cost.of(0)


def test_a_request_is_answered_token_by_token(core):
    [request] = greedy([[5, 6, 7]], 4)
    core.add(request)
    events = []
    while core.has_work:
        events += core.step()
    assert [len(event.token_ids) for event in events] == [1, 1, 1, 1]
    assert [event.finish_reason for event in events] == [None, None, None, "length"]
    assert [event.completion_tokens for event in events] == [1, 2, 3, 4]
    assert {event.prompt_tokens for event in events} == {3}


def test_a_chunk_before_the_prompt_s_end_brings_nothing(core):
    core.add(greedy([list(range(5, 45))], 1)[0])
    assert [core.step(), core.step()] == [[], []]
    assert len(core.step()) == 1


def test_the_end_token_ends_the_text(core):
    prompt = random_prompts(1, [20])[0]
    tokens = run(core, greedy([prompt], 8))["r0", 0]
    stop = tokens[3]
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, stop_token_ids=(stop,))
    core.add(GenerateRequest("again", prompt, params))
    events = []
    while core.has_work:
        events += core.step()
    kept = [token for event in events for token in event.token_ids]
    assert kept == tokens[: tokens.index(stop)]
    assert (events[-1].finish_reason, events[-1].stop_token_id) == ("stop", stop)


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_forks_write_to_pages_of_their_own(tiny, page_size, prefix_cache):
    """Each fork draws other tokens from the shared prompt: a page that two of them write to would show."""
    recipe = make_recipe(tiny, memory={"page_size": page_size}, scheduler={"prefix_cache": prefix_cache})
    prompts = random_prompts(3, [21, 16, 3])
    params = SamplingParams(seed=5, max_tokens=30, n=4, ignore_eos=True)
    with core_of(recipe) as core:
        forked = run(core, [GenerateRequest(f"r{i}", prompt, params) for i, prompt in enumerate(prompts)])
        for number, prompt in enumerate(prompts):
            for index in range(4):
                output = forked[f"r{number}", index]
                # the sequence's own tokens, forced through the model again from nothing, give the same choice
                again = forced(core, prompt, output, 5, index)
                assert again == output[-1]
    assert len({tuple(one) for one in forked.values()}) == 12


def forced(core, prompt, output, seed, index):
    """The token that completion `index` gets behind all but the last of `output`."""
    logits = logits_of(core._model, [*prompt, *output[:-1]])[-1:]
    number = uniform(derive_seed(seed, index), len(output) - 1)
    ordered, ids = logits.double().softmax(-1).sort(descending=True, stable=True)
    return int(ids[0, int((ordered.cumsum(-1)[0] <= number).sum())])


def test_an_abort_ends_one_request_and_leaves_the_others(core):
    prompts = random_prompts(4, [20])
    alone = run(core, greedy(prompts, 10))
    for request in greedy(prompts, 10):
        core.add(request)
    outputs = {}
    for step in range(100):
        for event in core.step():
            outputs.setdefault(event.request_id, []).extend(event.token_ids)
        core.scheduler.check_invariants()
        if step == 4:
            [event] = core.abort("r1")
            assert event.finish_reason == "abort"
        if not core.has_work:
            break
    assert {name: outputs[name] for name in ("r0", "r2", "r3")} == {name: alone[name, 0] for name in ("r0", "r2", "r3")}
    assert len(outputs["r1"]) < 10
    assert core.stats()["aborted"] == 1


def test_failing_all_ends_everything_with_the_reason(core):
    for request in greedy(random_prompts(3, [20]), 10):
        core.add(request)
    core.step()
    events = core.fail_all("the chip is on fire")
    assert {(event.finish_reason, event.error) for event in events} == {("error", "the chip is on fire")}
    assert not core.has_work
    core.scheduler.check_invariants()


def test_a_request_that_can_never_run_is_refused_at_once(core):
    with pytest.raises(RequestInvalid, match="513 tokens, the context 512"):
        core.add(greedy([[5] * 513], 1)[0])
    with pytest.raises(RequestInvalid, match="token id 512 is not one of"):
        core.add(greedy([[512]], 1)[0])
    assert not core.has_work


def test_the_numbers_add_up(core):
    run(core, greedy(random_prompts(5, [20]), 6))
    stats = core.stats()
    assert (stats["finished"], stats["completion_tokens"], stats["prompt_tokens"]) == (5, 30, 100)
    assert 0 < stats["forward_seconds"] < stats["step_seconds"]
    assert stats["pages_free"] + stats["pages_evictable"] == stats["pages_total"]
    assert stats["page_size"] == 16
    assert stats["device_bytes_free"] > 0


def test_the_cache_can_be_emptied_only_when_idle(core):
    prompt = random_prompts(1, [40])
    run(core, greedy(prompt, 2))
    core.add(greedy(prompt, 4)[0])
    core.step()
    assert not core.flush_cache()
    while core.has_work:
        core.step()
    assert core.flush_cache()
    assert core.stats()["pages_free"] == core.stats()["pages_total"]


@pytest.mark.parametrize(("context", "kv_tokens"), [(512, 4096), (2, 64), (8, 64), (None, 64)])
def test_warm_up_leaves_no_trace(tiny, context, kv_tokens):
    recipe = make_recipe(tiny, model={"context_length": context}, memory={"kv_tokens": kv_tokens})
    stages = []
    core = build_core(recipe, lambda stage, *_: stages.append(stage))
    try:
        stats = core.stats()
        assert not core.has_work
        assert stats["pages_free"] == stats["pages_total"]
        assert stats["step_seconds"] == stats["forward_seconds"] == 0
        assert list(dict.fromkeys(stages)) == ["verify", "load", "warm-up"]
        core.add(greedy([[5]], 1)[0])  # the id of the warm-up is free again
        core.add(GenerateRequest(WARM_UP_ID, [5], SamplingParams(max_tokens=1)))
    finally:
        core.close()


def test_warm_up_does_not_change_what_is_answered(tiny):
    prompts = random_prompts(3, [20])
    with core_of(make_recipe(tiny)) as cold:
        expected = run(cold, greedy(prompts, 8))
    warm = build_core(make_recipe(tiny), quiet)
    assert run(warm, greedy(prompts, 8)) == expected
    warm.close()


@pytest.mark.parametrize(("banned", "level"), [([], "info"), ([{"op": "rope", "ban": ["cpu"]}], "warning")])
def test_loading_tells_the_fallbacks_and_how_long_each_stage_took(tiny, banned, level):
    with capture_logs() as logs:
        build_core(make_recipe(tiny, ops={"overrides": banned}, fusion={"policies": []}), quiet).close()
    [told] = [one for one in logs if one["event"] == "model loaded"]
    assert told["log_level"] == level
    assert told["fallbacks"] == [one["op"] for one in banned]
    assert all(told[f"{stage}_s"] >= 0 for stage in ("plan", "verify", "load", "compile", "warm_up"))


def test_a_worker_starts_from_a_recipe_file(tiny, tmp_path):
    file = tmp_path / "resolved.yaml"
    file.write_text(
        f"version: 1\nname: t\nmodel: {{source: {tiny}, dtype: float32}}\nbackend: {{name: cpu, threads: 1}}\n"
        "memory: {kv_tokens: 1024}\n"
    )
    told = []
    core = from_recipe_file(str(file), told.append)
    assert isinstance(core, EngineCore)
    core.close()
    assert (told[-1].stage, told[-1].done, told[-1].total) == ("warm-up", 1, 1)
    with pytest.raises(UsageError):
        from_recipe_file(42, told.append)


def test_a_missing_checkpoint_is_told_before_anything_is_opened(tmp_path):
    with pytest.raises(CheckpointInvalid):
        prepare(make_recipe(tmp_path / "absent"))


def test_the_scheduler_gets_what_the_plan_decided():
    plan = plan_of(
        make_recipe(
            "/models/m",
            memory={"page_size": 4, "kv_tokens": 512},
            scheduler={"chunked_prefill_size": 64, "policy": "fcfs", "prefix_cache": False, "max_running_requests": 7},
            server={"max_queued_requests": 9},
        ),
        tiny_config(eos_token_id=[2, 9]),
        stub_backend(),
    )
    config = scheduler_config(plan)
    assert {field.name for field in fields(SchedulerPlan)} - {field.name for field in fields(config)} == {
        "kv_dtype", "kv_tokens", "tpot_p95_s",
    }  # fmt: skip
    assert (config.chunked_prefill_size, config.max_running_requests, config.max_queued_requests) == (64, 7, 9)
    assert (config.policy, config.prefix_cache, config.page_size) == ("fcfs", False, 4)
    assert (config.context_length, config.vocab_size, config.eos_token_ids) == (512, 512, (2, 9))
