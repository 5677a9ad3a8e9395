"""Greedy output of a model with latent attention is the same whatever the engine does. Knows no server."""

import pytest
import torch

from anychip.plan.explain import as_text
from support.engines import core_of, greedy, loaded, logits_of, make_recipe, random_prompts, run
from support.family_models import make_family

SHAPE = {"num_key_value_heads": 4, "kv_lora_rank": 32, "qk_nope_head_dim": 8, "qk_rope_head_dim": 16, "v_head_dim": 8}
KEYS = {
    **SHAPE,
    "q_lora_rank": 24,
    "scale_emb": 3,
    "scale_depth": 1.1,
    "dim_model_base": 32,
    "tie_word_embeddings": False,
}
MAX_TOKENS = 8


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return make_family(tmp_path_factory.mktemp("latents"), "minicpm3", **KEYS)


@pytest.fixture(scope="module")
def prompts():
    first = random_prompts(4, (33, 5, 20, 18), vocab=256)
    return [*first, *[[*one[: len(one) // 2], *one[len(one) // 3 :]] for one in first]]


@pytest.fixture(scope="module")
def expected(directory, prompts):
    recipe = make_recipe(directory, scheduler={"prefix_cache": False}, fusion={"policies": []})
    with core_of(recipe) as core:
        found = [run(core, greedy([prompt], MAX_TOKENS))["r0", 0] for prompt in prompts]
    assert len({tuple(one) for one in found}) == len(prompts), "outputs that are alike compare nothing"
    return found


def test_a_prompt_is_expanded_and_a_decode_absorbed(directory):
    """Both forms are within what is compared: the model's rank is small, so that few queries are enough."""
    with loaded(make_recipe(directory)) as model:
        assert model.plan.model.config.latent.expand_from == 11
        kernels = {row.op: row for row in model.plan.ops}
        assert not kernels["latent_attention"].is_fallback
        whole, single = (logits_of(model, range(3, 33), chunks) for chunks in (None, [1] * 30))
    torch.testing.assert_close(whole, single, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("page_size", "chunk"), [(1, 7), (16, 16), (16, 2048)])
def test_output_is_the_same_with_chunks_company_and_cached_prefixes(directory, prompts, expected, page_size, chunk):
    recipe = make_recipe(directory, memory={"page_size": page_size}, scheduler={"chunked_prefill_size": chunk})
    with core_of(recipe) as core:
        for _ in range(2):  # the second time the first one's prefixes are there
            found = run(core, greedy(prompts, MAX_TOKENS))
            assert [found[f"r{number}", 0] for number in range(len(prompts))] == expected
        assert core.stats()["cached_tokens"] > 30
        forks = run(core, greedy(prompts[:2], MAX_TOKENS, n=3))
    for number in range(2):
        assert [forks[f"r{number}", index] for index in range(3)] == [expected[number]] * 3


def test_output_is_the_same_after_retraction(directory, prompts, expected):
    recipe = make_recipe(directory, memory={"kv_tokens": 352}, scheduler={"chunked_prefill_size": 16})
    with core_of(recipe) as core:
        found = run(core, greedy(prompts[:6], 100))
        assert core.stats()["retractions"] > 0
    assert [found[f"r{number}", 0][:MAX_TOKENS] for number in range(6)] == expected[:6]


def test_the_plan_counts_one_vector_of_each_token_and_shows_it(directory):
    with loaded(make_recipe(directory)) as model:
        plan = model.plan
        assert plan.memory.kv_bytes_per_token == 2 * 48 * 4  # layers, rank + rotated, float32
        assert model.pool.layout.bytes_per_token == plan.memory.kv_bytes_per_token
        made = [one.elements for name, one in plan.weights.items() if ".kv_b_proj." in name]
        assert sum(made) == 2 * 4 * (8 + 8) * 32  # one half each, held once
        text = as_text(plan)
    assert "latent of 2 layers, a token: latent 48" in text
    assert "latent attention: a prompt's part of 11 tokens or more" in text
