"""Greedy output is the same whatever the engine does on the way to it. Knows tiny models; knows no server."""

import pytest
import torch

from anychip.engine.request import GenerateRequest, SamplingParams
from anychip_sdk.fusion import POLICIES as BUILT_IN
from support.engines import core_of, greedy, loaded, logits_of, make_recipe, random_prompts, run
from support.tiny_models import tiny_by_kind

KINDS = ("llama", "qwen2", "qwen3")
LENGTHS = (33, 5, 20, 18)
MAX_TOKENS = 8
LONG = 100
POLICIES = [policy for policy in BUILT_IN if policy != "shared_experts"]
ALL = {"policies": POLICIES, "on_missing": "ignore"}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return tiny_by_kind(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def prompts():
    """Sixteen prompts; the second half repeats the first half's beginnings, so that the cache has something to hit."""
    first = random_prompts(8, LENGTHS)
    return [*first, *[[*one[: len(one) // 2], *one[len(one) // 3 :]] for one in first]]


def outputs(directory, prompts, max_tokens=MAX_TOKENS, **sections):
    """Output per prompt, all prompts at once; and the core's numbers."""
    with core_of(make_recipe(directory, **sections)) as core:
        found = run(core, greedy(prompts, max_tokens))
        return [found[f"r{number}", 0] for number in range(len(prompts))], core.stats()


@pytest.fixture(scope="module")
def expected(tiny, prompts):
    """What each prompt gives alone: without fusions, without cache, the prompt whole."""
    made = {}

    def get(kind):
        if kind not in made:
            recipe = make_recipe(tiny(kind), scheduler={"prefix_cache": False}, fusion={"policies": []})
            with core_of(recipe) as core:
                made[kind] = [run(core, greedy([prompt], MAX_TOKENS))["r0", 0] for prompt in prompts]
            assert len({tuple(one) for one in made[kind]}) == len(prompts), "outputs that are alike compare nothing"
        return made[kind]

    return get


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("chunk", [1, 7, 16, 2048])
def test_output_is_the_same_for_every_chunk_and_page_size(tiny, prompts, expected, kind, page_size, chunk):
    found, _ = outputs(tiny(kind), prompts, memory={"page_size": page_size}, scheduler={"chunked_prefill_size": chunk})
    assert found == expected(kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_output_is_the_same_with_and_without_the_prefix_cache(tiny, prompts, expected, kind, prefix_cache):
    recipe = make_recipe(tiny(kind), scheduler={"prefix_cache": prefix_cache, "chunked_prefill_size": 16})
    with core_of(recipe) as core:
        for _ in range(2):  # the second time the first one's prefixes are there
            found = run(core, greedy(prompts, MAX_TOKENS))
            assert [found[f"r{number}", 0] for number in range(len(prompts))] == expected(kind)
        assert (core.stats()["cached_tokens"] > 100) == prefix_cache


@pytest.mark.parametrize("kind", KINDS)
def test_output_is_the_same_one_after_the_other_and_when_they_come_one_by_one(tiny, prompts, expected, kind):
    with core_of(make_recipe(tiny(kind), scheduler={"chunked_prefill_size": 16})) as core:
        alone = [run(core, greedy([prompt], MAX_TOKENS))["r0", 0] for prompt in prompts]
        waiting = greedy(prompts, MAX_TOKENS)
        staggered = {}
        while waiting or core.has_work:
            if waiting:
                core.add(waiting.pop(0))
            for event in core.step():
                staggered.setdefault(event.request_id, []).extend(event.token_ids)
    assert alone == expected(kind)
    assert [staggered[f"r{number}"] for number in range(len(prompts))] == expected(kind)


@pytest.fixture(scope="module")
def expected_long(tiny, prompts):
    """The first prompts' outputs with memory for all. Short remainders are admitted in full: only long ones retract."""
    made = {}

    def get(kind):
        if kind not in made:
            made[kind], _ = outputs(tiny(kind), prompts[:6], LONG, scheduler={"prefix_cache": False})
        return made[kind]

    return get


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("page_size", "prefix_cache"), [(1, True), (16, True), (16, False)])
def test_output_is_the_same_after_retraction(tiny, prompts, expected_long, expected, kind, page_size, prefix_cache):
    few = prompts[:6]
    found, stats = outputs(
        tiny(kind),
        few,
        LONG,
        memory={"page_size": page_size, "kv_tokens": 352},
        scheduler={"prefix_cache": prefix_cache, "chunked_prefill_size": 16},
    )
    assert stats["retractions"] > 0
    assert found == expected_long(kind)
    assert [one[:MAX_TOKENS] for one in found] == expected(kind)[: len(few)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("page_size", [1, 16])
def test_forks_of_a_greedy_request_are_alike_and_equal_to_it(tiny, prompts, expected, kind, page_size):
    with core_of(make_recipe(tiny(kind), memory={"page_size": page_size})) as core:
        found = run(core, greedy(prompts[:4], MAX_TOKENS, n=4))
    for number in range(4):
        assert [found[f"r{number}", index] for index in range(4)] == [expected(kind)[number]] * 4


def test_forks_with_seeds_equal_single_requests_whatever_their_batch(tiny, prompts):
    """The n completions of a request are the same alone, in company, and in a pool that makes them retract."""

    def requests(numbers):
        params = SamplingParams(temperature=0.8, seed=11, max_tokens=140, n=3, ignore_eos=True)
        return [GenerateRequest(f"r{number}", prompts[number], params) for number in numbers]

    alone = {}
    with core_of(make_recipe(tiny("qwen3"))) as core:
        for number in range(3):
            alone |= run(core, requests([number]))
    with core_of(make_recipe(tiny("qwen3"))) as core:
        together = run(core, requests(range(3)))
    with core_of(make_recipe(tiny("qwen3"), memory={"kv_tokens": 448})) as core:
        squeezed = run(core, requests(range(3)))
        assert core.stats()["retractions"] > 0
    assert together == alone
    assert squeezed == alone
    assert len({tuple(one) for one in alone.values()}) == 9


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("policies", [*[[policy] for policy in POLICIES], POLICIES, []], ids="+".join)
def test_output_is_the_same_with_each_fusion(tiny, prompts, expected, kind, policies):
    with core_of(make_recipe(tiny(kind), fusion={"policies": policies, "on_missing": "ignore"})) as core:
        applied = {one.policy for one in core.plan.fusions if one.applied}
        found = run(core, greedy(prompts, MAX_TOKENS))
    without_norms = {"qk_norm_rope"} if kind != "qwen3" else set()
    absorbed = {"qkv_proj", "qk_norm_rope", "gate_up_proj", "silu_mul"} if len(policies) > 1 else set()
    assert applied == set(policies) - without_norms - absorbed
    assert [found[f"r{number}", 0] for number in range(len(prompts))] == expected(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_the_margin_of_each_choice_is_far_above_rounding(tiny, prompts, expected, kind):
    """So that equal outputs are no luck: the two best logits of each step differ by more than rounding."""
    smallest = float("inf")
    with loaded(make_recipe(tiny(kind))) as model:
        for prompt, output in zip(prompts, expected(kind), strict=True):
            logits = logits_of(model, [*prompt, *output])[len(prompt) - 1 : -1]
            assert logits.argmax(dim=-1).tolist() == output
            best = logits.topk(2, dim=-1).values
            smallest = min(smallest, float((best[:, 0] - best[:, 1]).min() / best[:, 0].abs().max()))
    assert smallest > 1e-5
