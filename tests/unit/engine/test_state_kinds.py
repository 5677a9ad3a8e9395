"""Models of every kind of state, through one scheduler, prefix cache, retraction and fork: the tokens stay the same.

Pages only (llama), a windowed and a full group of pages (windowed), slots only (recurrent), and all of them (hybrid);
slots and pages of a model of the catalogue's ops (delta).
"""

from contextlib import contextmanager

import pytest
import torch

from anychip.engine.core import EngineCore
from anychip.engine.request import GenerateRequest, SamplingParams
from anychip.engine.seeds import derive_seed, uniform
from support.engines import greedy, loaded, make_recipe, random_prompts, run, sequence_step
from support.family_models import make_family
from support.tiny_models import make_tiny
from support.toy_models import TOYS, WINDOW, toy_model

CHECKPOINTS = {
    "llama": ("llama", {"num_hidden_layers": 2}),
    "windowed": (
        "qwen2",
        {"num_hidden_layers": 2, "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    ),
}
DELTA = {
    "hidden_size": 32, "head_dim": 16, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 48,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 16,
    "layer_types": ["linear_attention", "full_attention"], "vocab_size": 512,
}  # fmt: skip
GROUPS = {
    "llama": ["paged"],
    "windowed": ["paged"] * 2,
    "recurrent": ["slot"],
    "hybrid": ["slot", "paged", "paged"],
    "delta": ["slot", "paged"],
}
KINDS = list(GROUPS)
MAX_TOKENS = 6
LONG = 90
SEED = 5


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """Opens a model of a kind: a with block."""
    folder = tmp_path_factory.mktemp("tiny")
    directories = {kind: make_tiny(folder / kind, name, **more) for kind, (name, more) in CHECKPOINTS.items()}
    directories["delta"] = make_family(folder / "delta", "qwen3_5_text", **DELTA)

    @contextmanager
    def get(kind, slots=None, **sections):
        made = toy_model(kind, make_recipe("/models/toy", **sections), slots) if kind in TOYS else None
        with made or loaded(make_recipe(directories[kind], **sections)) as model:
            yield model

    return get


def prompts():
    """Each of the second half begins as one of the first does, or is it."""
    first = random_prompts(4, (33, 5, 20, 32))
    return [*first, *[[*one[: len(one) * 2 // 3], *one[len(one) // 3 :]] for one in first], first[0], first[3]]


def alone(model, prompt, count, index=None):
    """Tokens of a sequence without an engine: each by a run of the whole text from nothing.

    Args:
        index: of the completion whose tokens are drawn with SEED; None: greedy.
    """
    size, tokens = model.pool.layout.page_size, list(prompt)
    pages = model.pool.alloc(-(-(len(prompt) + count) // size))[::-1]
    for number in range(count):
        step = sequence_step(model.pool, tokens, 0, len(tokens), pages, slot=0)
        with torch.inference_mode():
            model.pool.clear_slots([0])
            logits = model.forward(step)[-1]
        tokens.append(int(logits.argmax()) if index is None else drawn(logits, index, number))
    model.pool.free(pages)
    return tokens[len(prompt) :]


def drawn(logits, index, number):
    ordered, ids = logits.double().softmax(-1).sort(descending=True, stable=True)
    return int(ids[int((ordered.cumsum(-1) <= uniform(derive_seed(SEED, index), number)).sum())])


@pytest.fixture(scope="module")
def expected(opened):
    """Of each prompt alone, greedy."""
    made = {}

    def get(kind, count=MAX_TOKENS):
        if (kind, count) not in made:
            with opened(kind) as model:
                made[kind, count] = [alone(model, prompt, count) for prompt in prompts()]
        return made[kind, count]

    return get


def outputs(core, count=MAX_TOKENS):
    found = run(core, greedy(prompts(), count))
    return [found[f"r{number}", 0] for number in range(len(prompts()))]


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_has_the_groups_that_its_kind_says(opened, kind):
    with opened(kind) as model:
        assert [group.spec.kind for group in model.pool.groups] == GROUPS[kind]
        windows = [group.spec.window for group in model.pool.groups if group.spec.kind == "paged"]
        assert (WINDOW in windows) == (len(windows) == 2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("chunk", "page_size"), [(1, 4), (7, 1), (16, 16), (2048, 4)])
def test_tokens_are_the_same_for_every_chunk_and_page_size(opened, expected, kind, chunk, page_size):
    with opened(kind, memory={"page_size": page_size}, scheduler={"chunked_prefill_size": chunk}) as model:
        assert outputs(EngineCore(model)) == expected(kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_tokens_are_the_same_with_and_without_the_prefix_cache(opened, expected, kind, prefix_cache):
    scheduler = {"prefix_cache": prefix_cache, "chunked_prefill_size": 16}
    with opened(kind, memory={"page_size": 4}, scheduler=scheduler) as model:
        core = EngineCore(model)
        for _ in range(2):  # the second time the first one's prefixes are there
            assert outputs(core) == expected(kind)
        assert (core.stats()["cached_tokens"] > 200) == prefix_cache


@pytest.mark.parametrize("kind", KINDS)
def test_a_shared_beginning_is_computed_twice_at_most(opened, kind):
    """The second request that begins as another one did leaves a snapshot for those to come, if one is needed."""
    shared = random_prompts(1, [32], seed=3)[0]
    with opened(kind, memory={"page_size": 4}) as model:
        core = EngineCore(model)
        for number in range(4):
            run(core, greedy([[*shared, *[7 + number] * 9]], 2))
        assert core.stats()["cached_tokens"] == 32 * (2 if "slot" in GROUPS[kind] else 3)


@pytest.mark.parametrize("kind", list(TOYS))
@pytest.mark.parametrize("slots", [1, 2, 5])
def test_tokens_are_the_same_when_slots_are_few(opened, expected, kind, slots):
    with opened(kind, slots, memory={"page_size": 4}, scheduler={"chunked_prefill_size": 16}) as model:
        core = EngineCore(model)
        most = 0
        for request in greedy(prompts(), MAX_TOKENS):
            core.add(request)
        found = {}
        while core.has_work:
            for event in core.step():
                found.setdefault(event.request_id, []).extend(event.token_ids)
            core.scheduler.check_invariants()
            most = max(most, core.stats()["running"])
        assert [found[f"r{number}"] for number in range(len(prompts()))] == expected(kind)
        assert most == slots


@pytest.mark.parametrize("kind", [*KINDS[:-1], pytest.param("delta", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("page_size", "prefix_cache"), [(1, True), (16, True), (16, False)])
def test_tokens_are_the_same_after_retraction(opened, kind, page_size, prefix_cache):
    few = prompts()[:5]
    with opened(kind, scheduler={"prefix_cache": False}) as model:
        plain = run(EngineCore(model), greedy(few, LONG))
    memory = {"page_size": page_size, "kv_tokens": 288}
    with opened(kind, memory=memory, scheduler={"prefix_cache": prefix_cache, "chunked_prefill_size": 16}) as model:
        core = EngineCore(model)
        assert run(core, greedy(few, LONG)) == plain
        assert core.stats()["retractions"] > 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_each_fork_goes_on_from_the_prompt_s_state(opened, kind, prefix_cache):
    params = SamplingParams(seed=SEED, max_tokens=8, n=3, ignore_eos=True)
    few = prompts()[1:4]
    with opened(kind, memory={"page_size": 4}, scheduler={"prefix_cache": prefix_cache}) as model:
        plain = {(f"r{n}", i): alone(model, prompt, 8, i) for n, prompt in enumerate(few) for i in range(3)}
        core = EngineCore(model)
        for _ in range(2):
            requests = [GenerateRequest(f"r{number}", prompt, params) for number, prompt in enumerate(few)]
            assert run(core, requests) == plain
    assert len({tuple(one) for one in plain.values()}) == 9


@pytest.mark.parametrize("kind", KINDS)
def test_aborts_and_a_failed_step_leave_the_others_tokens_as_they_are(opened, expected, kind):
    with opened(kind, memory={"page_size": 4}, scheduler={"chunked_prefill_size": 16}) as model:
        core = EngineCore(model)
        for request in greedy(prompts(), MAX_TOKENS):
            core.add(request)
        for number in range(8):
            core.step()
            core.abort(f"r{number}")
            core.scheduler.check_invariants()
        core.fail_all("the chip is on fire")
        core.scheduler.check_invariants()
        assert outputs(core) == expected(kind)
