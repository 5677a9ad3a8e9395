"""Steps that overlap: the same tokens and events as one after the other, and nothing waited for or read too early."""

import msgspec
import pytest
import torch

from anychip.engine.request import GenerateRequest, LogProb, SamplingParams
from support.engines import core_of, greedy, make_recipe, random_prompts, run, tokens_of
from support.late_device import POISON, late_backend, watched
from support.tiny_models import make_tiny

KINDS = [
    {"temperature": 0.0},
    {"temperature": 0.9, "top_p": 0.9, "seed": 3},
    {"temperature": 0.0, "repetition_penalty": 1.3, "logprobs": 2},
    {"temperature": 0.7, "seed": 5, "logprobs": 0},
    {"temperature": 0.8, "seed": 6, "n": 2},
    {"temperature": 1.0, "seed": 9, "min_tokens": 3, "stop_token_ids": tuple(range(0, 512, 9))},
]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("tiny") / "llama", "llama", num_hidden_layers=1)


def recipe_of(tiny, overlap, backend="cpu", kv_tokens=4096, **scheduler):
    said = {"chunked_prefill_size": 16, "overlap": overlap, **scheduler}
    return make_recipe(tiny, backend={"name": backend}, scheduler=said, memory={"kv_tokens": kv_tokens, "page_size": 4})


def mixed(count=12, kinds=KINDS, max_tokens=14):
    return [
        GenerateRequest(
            f"r{number}",
            prompt,
            SamplingParams(**{"ignore_eos": True, "max_tokens": max_tokens, **kinds[number % len(kinds)]}),
        )
        for number, prompt in enumerate(random_prompts(count, [20, 5, 33]))
    ]


def staggered(core, requests, every=2):
    """The events of each completion, where a request comes every few steps."""
    events, waiting, steps = {}, list(requests), 0
    while waiting or core.has_work:
        if waiting and steps % every == 0:
            core.add(waiting.pop(0))
        steps += 1
        for event in core.step():
            assert event.error is None
            events.setdefault((event.request_id, event.index), []).append(event)
        core.scheduler.check_invariants()
    return events


def assert_alike(found, expected):
    """Equal but for the last bits of log-probabilities, in which torch's products depend on the rows beside."""
    assert {name: [without(one) for one in events] for name, events in found.items()} == {
        name: [without(one) for one in events] for name, events in expected.items()
    }
    assert logprobs_of(found) == pytest.approx(logprobs_of(expected), abs=1e-4)


def without(event):
    """The event, without how likely its tokens and the others were."""
    tops = tuple(LogProb(0.0, tuple((token, 0.0) for token, _ in one.top)) for one in event.logprobs)
    return msgspec.structs.replace(event, logprobs=tops)


def logprobs_of(events):
    ones = [one for name in sorted(events) for event in events[name] for one in event.logprobs]
    return [number for one in ones for number in (one.logprob, *(logprob for _, logprob in one.top))]


@pytest.mark.parametrize(("kv_tokens", "prefix_cache"), [(4096, True), (4096, False), (88, True)])
def test_tokens_and_events_are_those_of_steps_one_after_the_other(tiny, kv_tokens, prefix_cache):
    found = []
    for overlap in (False, True):
        recipe = recipe_of(tiny, overlap, kv_tokens=kv_tokens, prefix_cache=prefix_cache, max_running_requests=6)
        with core_of(recipe) as core:
            if kv_tokens == 88:
                estimate = core.scheduler._estimate
                estimate.EXACT, estimate.AFTER_RETRACTION = 1, 0.0
                estimate.START = estimate.FLOOR = estimate.ratio = 0.05
            found.append(staggered(core, mixed(), every=1))
            assert (core.stats()["steps_ahead"] > 10) is overlap
            assert (core.stats()["retractions"] > 0) is (kv_tokens == 88)
    assert found[0] == found[1]


# --- a device on which nothing can be read before it was waited for


@pytest.fixture
def late(tiny):
    backend, plugin = late_backend()
    with core_of(recipe_of(tiny, "auto", "late", max_running_requests=6), backend) as core, torch.inference_mode():
        yield core, plugin.opened


def test_steps_overlap_by_default_where_streams_are_asynchronous(late):
    core, _ = late
    assert core.plan.scheduler.overlap.value


def test_nothing_is_waited_for_while_a_step_is_submitted_or_read_before_its_step_is_done(tiny, late):
    core, device = late
    with watched(device, core._runner, core._model):
        found = staggered(core, mixed())
    backend, _ = late_backend()
    with core_of(recipe_of(tiny, False, "late", max_running_requests=6), backend) as one_by_one:
        assert_alike(staggered(one_by_one, mixed()), found)
    assert core.stats()["steps_ahead"] > 10


def test_a_result_is_waited_for_and_not_the_step_behind_it(late):
    core, device = late
    core.add(greedy(random_prompts(1, [5]), 6)[0])
    device.waited.clear()
    behind = []
    with watched(device, core._runner, core._model):
        while core.has_work:
            core.step()
            behind.append(device.recorded - device.done)
    assert device.waited == [1, 2, 3, 4, 5, 6]
    assert behind == [1, 1, 1, 1, 1, 0]  # the last token ends the text by its number: nothing is behind it


def test_a_runner_that_waits_for_nothing_reads_poison(late):
    core, device = late
    core.add(greedy(random_prompts(1, [5]), 6)[0])
    with watched(device, core._runner, core._model), pytest.MonkeyPatch.context() as patch:
        patch.setattr(core._runner._transfers, "wait", lambda mark: None)
        [event] = core.step()
    assert event.token_ids == [POISON]


# --- what comes between two steps


@pytest.fixture
def core(tiny):
    with core_of(recipe_of(tiny, True, max_running_requests=6)) as made:
        yield made


def alone(core, request):
    tokens = run(core, [request])[request.id, 0]
    core.flush_cache()
    return tokens


def test_a_text_that_ends_by_its_token_has_no_event_behind_it(core):
    prompt = random_prompts(1, [20])[0]
    tokens = alone(core, greedy([prompt], 8)[0])
    at = next(at for at in range(1, 8) if tokens[at] not in tokens[:at])
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, stop_token_ids=(tokens[at],))
    events = staggered(core, [GenerateRequest("a", prompt, params), *greedy(random_prompts(2, [7]), 12)], every=1)
    assert [token for event in events["a", 0] for token in tokens_of(event)] == tokens[: at + 1]
    assert events["a", 0][-1].finish_reason == "stop"
    assert core.flush_cache()
    assert core.stats()["pages_free"] == core.stats()["pages_total"]


def test_an_abort_ends_a_request_of_which_two_steps_are_in_flight(core):
    prompts = random_prompts(3, [20])
    expected = [alone(core, request) for request in greedy(prompts, 10)]
    for request in greedy(prompts, 10):
        core.add(request)
    outputs = {}
    for step in range(100):
        for event in core.step():
            outputs.setdefault(event.request_id, []).extend(event.token_ids)
        if step == 4:
            assert len(core._flights) == 1
            [event] = core.abort("r1")
            assert event.finish_reason == "abort"
        core.scheduler.check_invariants()
        if not core.has_work:
            break
    assert [outputs["r0"], outputs["r2"]] == [expected[0], expected[2]]
    assert outputs["r1"] == expected[1][: len(outputs["r1"])]


def test_a_completion_that_is_whole_while_two_steps_are_in_flight_leaves_its_siblings_as_they_are(core):
    [prompt] = random_prompts(1, [20])
    params = SamplingParams(temperature=1.0, seed=5, max_tokens=10, ignore_eos=True, n=3)
    expected = run(core, [GenerateRequest("r", prompt, params)])
    core.add(GenerateRequest("r", prompt, params))
    outputs = {}
    for step in range(100):
        for event in core.step():
            outputs.setdefault(event.index, []).extend(event.token_ids)
        if step == 4:
            assert len(core._flights) == 1
            core.stop("r", 1)
        core.scheduler.check_invariants()
        if not core.has_work:
            break
    assert [outputs[0], outputs[2]] == [expected["r", 0], expected["r", 2]]
    assert outputs[1] == expected["r", 1][: len(outputs[1])]
    assert len(outputs[1]) < 10
    assert core.flush_cache()


def test_a_step_that_nobody_waits_for_is_forgotten_and_hurts_nobody_who_comes_next(core):
    first, second = greedy(random_prompts(2, [20, 33]), 9)
    expected = alone(core, second)
    core.add(first)
    for _ in range(4):
        core.step()
    assert core._flights
    core.abort(first.id)
    assert not core._flights
    assert not core.has_work
    assert core.flush_cache()
    core.scheduler.check_invariants()
    assert run(core, [second])[second.id, 0] == expected


def test_a_step_that_fails_takes_the_one_in_flight_with_it(core):
    requests = greedy(random_prompts(3, [20]), 9)
    expected = [alone(core, request) for request in requests]
    for request in requests:
        core.add(request)
    core.step()
    submit = core._runner.submit

    def broken(plan):
        message = "the card is on fire"
        raise RuntimeError(message)

    core._runner.submit = broken
    with pytest.raises(RuntimeError, match="on fire"):
        core.step()
    assert core._flights
    assert {event.finish_reason for event in core.fail_all("on fire")} == {"error"}
    assert not core._flights
    assert not core.has_work
    core._runner.submit = submit
    assert [run(core, [request])[request.id, 0] for request in requests] == expected


def test_a_request_that_comes_while_a_step_runs_is_in_the_next_one_that_is_scheduled(core):
    first, second = greedy(random_prompts(2, [5]), 20)
    core.add(first)
    core.step()
    core.add(second)
    [running], steps = core._flights, 0
    assert {row.sequence.id for row in running.batch.rows} == {first.id}
    seen = set()
    while second.id not in seen:
        seen |= {event.request_id for event in core.step()}
        steps += 1
    assert steps == 2  # the step that was submitted already, and its own


def test_the_pace_is_told_the_time_between_results(core, monkeypatch):
    """Two steps overlap, so that one lasts from its submission on, or from the result before it."""
    told = []
    monkeypatch.setattr(core._pace, "observe", lambda *said: told.append(said))
    core.add(greedy(random_prompts(1, [5]), 12)[0])
    clock = [0.0]
    monkeypatch.setattr("anychip.engine.core.time.perf_counter", lambda: clock[0])
    finish = core._runner.finish

    def slow(*said):
        clock[0] += 1.0
        return finish(*said)

    core._runner.finish = slow
    while core.has_work:
        core.step()
    assert [round(seconds, 6) for _, _, seconds in told] == [1.0] * 12
    assert [decodes for decodes, _, _ in told] == [0] + [1] * 11


def test_a_warm_up_leaves_no_step_behind(core):
    core.warm_up()
    assert not core._flights
    assert core.stats()["steps"] == core.stats()["steps_ahead"] == 0


def test_a_model_closes_with_a_step_in_flight(tiny):
    backend, plugin = late_backend()
    with core_of(recipe_of(tiny, True, "late"), backend) as core:
        core.add(greedy(random_prompts(1, [5]), 9)[0])
        core.step()
        assert core._flights
    assert not plugin.opened.is_open
