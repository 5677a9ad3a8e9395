"""Runners follow plans, and nothing but plans. Knows tiny models; knows no server."""

import pytest
import torch

from anychip.engine.request import GenerateRequest, SamplingParams
from anychip.engine.runner import Runner, run_state_ops
from anychip.engine.state_ops import ClearSlot, CopySlot
from anychip.engine.step_plan import Continuation, RowPlan, StepPlan, decode_plan, decode_result, encode
from support.engines import core_of, greedy, loaded, logits_of, make_recipe, random_prompts, run, tokens_of
from support.fake_pool import FakePool
from support.tiny_models import make_tiny

KINDS = [
    {"temperature": 0.0},
    {"temperature": 0.9, "top_p": 0.9, "seed": 3, "n": 2},
    {"temperature": 0.0, "repetition_penalty": 1.3, "logprobs": 2},
    {"temperature": 0.7, "seed": 5, "frequency_penalty": 0.5, "min_tokens": 4, "stop_token_ids": (9,), "logprobs": 0},
]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    tiny = make_tiny(tmp_path_factory.mktemp("tiny") / "llama", "llama", num_hidden_layers=1)
    return make_recipe(
        tiny, scheduler={"chunked_prefill_size": 16, "max_running_requests": 6}, memory={"kv_tokens": 160}
    )


def be_hopeful(core):
    """Admit as if outputs were short, so that memory runs out and sequences are retracted."""
    estimate = core.scheduler._estimate
    estimate.EXACT = 1
    estimate.START = estimate.FLOOR = estimate.ratio = 0.05
    estimate.AFTER_RETRACTION = 0.0


def mixed(tokens=30):
    """Requests of all kinds, too many for the pool to hold at once."""
    return [
        GenerateRequest(f"r{number}", prompt, SamplingParams(**KINDS[number % 4], max_tokens=tokens, ignore_eos=True))
        for number, prompt in enumerate(random_prompts(8, [20, 5, 33]))
    ]


class Broadcast:
    """Runs each plan on a second runner too, which gets it as bytes, and compares the results."""

    def __init__(self, first, second):
        self.first, self.second = first, second
        self.steps = 0

    def submit(self, plan):
        self.steps += 1
        sent = encode(plan)
        pending = self.first.submit(plan)
        result = self.second.submit(decode_plan(sent)).wait()
        self.expected = encode(result)
        assert decode_result(self.expected) == result
        return _Compared(pending, self.expected)


class _Compared:
    def __init__(self, pending, expected):
        self.pending, self.expected = pending, expected

    def wait(self):
        found = self.pending.wait()
        assert encode(found) == self.expected
        return found


def test_two_runners_that_get_the_same_bytes_give_the_same_results(recipe):
    with core_of(recipe) as core, loaded(recipe) as copy:
        be_hopeful(core)
        alone = run(core, mixed())
        core.flush_cache()
        core._runner = both = Broadcast(Runner(core._model), Runner(copy))
        core._planner = type(core._planner)()
        assert run(core, mixed()) == alone
        assert both.steps > 30
        assert core.stats()["retractions"] > 0


def test_what_a_runner_keeps_ends_with_the_sequences(recipe):
    with core_of(recipe) as core:
        runner = core._runner
        places = len(runner._free)
        run(core, mixed(5))
        run(core, greedy([[5]], 1))
        assert len(runner._held) == 1
        assert not runner._sampler._histories
        assert len(runner._free) == places - 1


def test_tokens_are_taken_where_the_device_has_them(recipe):
    """What the host believes of a decode's token doesn't matter: the row goes on from the one that was sampled."""
    prompt = random_prompts(1, [12])[0]
    with core_of(recipe) as core:
        expected = run(core, greedy([prompt], 6))["r0", 0]
        core.flush_cache()
        core.add(greedy([prompt], 6)[0])
        found = []
        while core.has_work:
            for event in core.step():
                found += tokens_of(event)
            for sequence in core.scheduler._decoding:
                sequence.tokens[-1] = 0
        assert found == expected


def test_a_plan_that_builds_on_one_that_is_missing_is_refused(recipe):
    with loaded(recipe) as model:
        runner = Runner(model)
        with pytest.raises(ValueError, match=r"sequence 7 .* pages from 2 on, this runner knows 0"):
            runner.submit(StepPlan(1, (RowPlan(7, 40, 1, 2, [4], [5]),), 1))
        with pytest.raises(ValueError, match="step 5 continues the one before, the last step of this runner is 0"):
            runner.submit(Continuation(5))


def test_log_probabilities_come_with_each_token(recipe):
    prompt = random_prompts(1, [12])[0]
    params = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True, logprobs=3)
    with core_of(recipe) as core:
        plain = run(core, greedy([prompt], 5))["r0", 0]
        core.add(GenerateRequest("r", prompt, params))
        found = []
        while core.has_work:
            for event in core.step():
                assert len(event.token_ids) == len(event.logprobs)
                found += zip(event.token_ids, event.logprobs, strict=True)
        assert [token for token, _ in found] == plain
        expected = logits_of(core._model, [*prompt, *plain[:-1]])[-5:].log_softmax(-1)
        for row, (token, one) in zip(expected, found, strict=True):
            values, ids = row.topk(3)
            assert one.logprob == pytest.approx(row[token].item(), abs=1e-4)
            assert one.logprob == one.top[0][1]
            assert [place for place, _ in one.top] == ids.tolist()
            assert [value for _, value in one.top] == pytest.approx(values.tolist(), abs=1e-4)


def test_an_operation_on_slots_sees_what_the_one_before_it_wrote():
    pool = FakePool(1, 1, slots=4)
    pool.states = [[1], [2], [3], [4]]
    run_state_ops([CopySlot(0, 1), ClearSlot(0), CopySlot(1, 2), CopySlot(0, 3)], pool)
    assert pool.states == [[], [1], [1], []]
