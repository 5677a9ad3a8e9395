"""A model with capped scores, windows and norms behind its blocks: its tokens are the same whatever the engine does."""

import pytest
import torch

from anychip.engine.core import EngineCore
from anychip_sdk.testing import chunk_step
from support.engines import NO_FUSION, greedy, loaded, make_recipe, random_prompts, run
from support.family_models import make_family

MAX_TOKENS = 6
LONG = 100


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    more = {"head_dim": 16, "sliding_window": 7, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 4.0}
    more["tie_word_embeddings"] = False  # else every token is followed by itself
    return make_family(tmp_path_factory.mktemp("gemma2"), "gemma2", **more)


@pytest.fixture(scope="module")
def prompts():
    first = random_prompts(3, (33, 5, 20), vocab=256)
    return [*first, *[[*one[: len(one) * 2 // 3], *one[len(one) // 3 :]] for one in first], first[0]]


@pytest.fixture(scope="module")
def expected(directory, prompts):
    """Each token by a run of the whole text from nothing."""
    with loaded(make_recipe(directory, fusion=NO_FUSION)) as model:
        found = [alone(model, prompt) for prompt in prompts]
    assert len({tuple(one) for one in found}) == len(prompts) - 1, "outputs that are alike compare nothing"
    return found


def alone(model, prompt):
    size, tokens = model.pool.layout.page_size, list(prompt)
    pages = model.pool.alloc(-(-(len(prompt) + MAX_TOKENS) // size))
    for _ in range(MAX_TOKENS):
        with torch.inference_mode():
            step = chunk_step(tokens, 0, len(tokens), pages, size, len(model.pool.groups))
            tokens.append(int(model.forward(step)[-1].argmax()))
    model.pool.free(pages)
    return tokens[len(prompt) :]


@pytest.mark.parametrize(("chunk", "page_size", "prefix_cache"), [(1, 4, False), (7, 1, True), (2048, 16, True)])
def test_tokens_are_the_same_for_every_chunk_page_size_batch_and_prefix(
    directory, prompts, expected, chunk, page_size, prefix_cache
):
    scheduler = {"chunked_prefill_size": chunk, "prefix_cache": prefix_cache}
    with loaded(make_recipe(directory, memory={"page_size": page_size}, scheduler=scheduler)) as model:
        core = EngineCore(model)
        for _ in range(2):  # the second time the first one's prefixes are there
            found = run(core, greedy(prompts, MAX_TOKENS))
            assert [found[f"r{number}", 0] for number in range(len(prompts))] == expected
        assert (core.stats()["cached_tokens"] > 50) == prefix_cache


def test_tokens_are_the_same_after_retraction(directory, prompts):
    with loaded(make_recipe(directory)) as model:
        plain = run(EngineCore(model), greedy(prompts[:5], LONG))
    memory = {"page_size": 16, "kv_tokens": 288}
    with loaded(make_recipe(directory, memory=memory, scheduler={"chunked_prefill_size": 16})) as model:
        core = EngineCore(model)
        assert run(core, greedy(prompts[:5], LONG)) == plain
        assert core.stats()["retractions"] > 0
