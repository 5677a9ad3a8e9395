"""Greedy output of a mixture of experts is the same whatever the engine does on the way to it. Knows no server."""

import pytest
import torch

from support.engines import core_of, greedy, loaded, logits_of, make_recipe, random_prompts, run
from support.family_models import make_family
from support.plans import stub_backend

MAX_TOKENS = 6
LONG = 80
SHARED = {"policies": ["shared_experts"], "on_missing": "error"}


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Four of eight experts' widths make the shared one, with a gate; prompts hit one another's prefixes."""
    return make_family(
        tmp_path_factory.mktemp("mixture"), "qwen2_moe", num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32,
        shared_expert_intermediate_size=64, max_position_embeddings=256,
    )  # fmt: skip


@pytest.fixture(scope="module")
def prompts():
    first = random_prompts(4, (33, 5, 20, 18), vocab=256)
    return [*first, *[[*one[: len(one) // 2], *one[len(one) // 3 :]] for one in first]]


def outputs(directory, prompts, backend=None, **sections):
    with core_of(make_recipe(directory, **sections), backend) as core:
        found = run(core, greedy(prompts, MAX_TOKENS))
        return [found[f"r{number}", 0] for number in range(len(prompts))], core.stats()


@pytest.fixture(scope="module")
def expected(directory, prompts):
    """What each prompt gives alone: without fusions, without cache, the prompt whole."""
    with core_of(make_recipe(directory, scheduler={"prefix_cache": False}, fusion={"policies": []})) as core:
        made = [run(core, greedy([prompt], MAX_TOKENS))["r0", 0] for prompt in prompts]
    assert len({tuple(one) for one in made}) == len(prompts), "outputs that are alike compare nothing"
    return made


@pytest.mark.parametrize(
    "sections",
    [
        {"scheduler": {"chunked_prefill_size": 1}, "memory": {"page_size": 1}},
        {"scheduler": {"chunked_prefill_size": 7}},
        {"scheduler": {"prefix_cache": False, "max_running_requests": 3}},
    ],
    ids=["one token at a time", "chunks", "three at once, no cache"],
)
def test_output_is_the_same(directory, prompts, expected, sections):
    found, _ = outputs(directory, prompts, **sections)
    assert found == expected


@pytest.mark.parametrize("policies", [["shared_experts"], ["ffn", "shared_experts"]])
def test_output_is_the_same_with_the_shared_expert_in_slots(directory, prompts, expected, policies):
    fusion = {"policies": policies, "on_missing": "error"}
    found, _ = outputs(directory, prompts, stub_backend(), fusion=fusion, scheduler={"chunked_prefill_size": 7})
    assert found == expected


def test_output_is_the_same_after_retraction(directory, prompts, expected):
    """Short remainders are admitted in full: only long ones retract."""
    recipe = make_recipe(directory, memory={"kv_tokens": 160, "page_size": 1})
    with core_of(recipe) as core:
        found = run(core, greedy(prompts[:3], LONG))
        assert core.stats()["retractions"] > 0
    assert [found[f"r{number}", 0][:MAX_TOKENS] for number in range(3)] == expected[:3]


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_slots_have_the_logits_of_the_shared_expert(directory, prompts, quantization):
    found = []
    for fusion in ({"policies": []}, SHARED):
        recipe = make_recipe(directory, model={"quantization": quantization}, fusion=fusion)
        with loaded(recipe, stub_backend()) as model:
            ops = {row.op: row.count for row in model.plan.ops}
            assert ops.get("gate_rows", 0) == (2 if fusion is not SHARED else 0)
            assert ("moe_experts_int8" in ops) == (quantization == "int8")
            assert "router_topk" in ops  # never in integers
            found.append(logits_of(model, prompts[0]))
    error = float((found[0] - found[1]).abs().max() / found[0].abs().max())
    assert error < (1e-5 if quantization == "none" else 0.05)  # a slot's rows have scales of their own


def test_auto_leaves_slots_out_and_says_why(directory):
    with loaded(make_recipe(directory)) as model:
        [one] = [one for one in model.plan.fusions if one.policy == "shared_experts"]
        assert one.refused
        assert "no measurement of the device says that it pays" in one.reason
