"""Logits that are not finite end the request that has them, and nothing else: no neighbour, no cache, no worker."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from anychip.engine.request import GenerateRequest, SamplingParams
from anychip_sdk.errors import CheckpointInvalid
from support.engines import core_of, greedy, make_recipe, random_prompts, run
from support.tiny_models import make_tiny

BAD = 511  #: its embedding is NaN
PAGE = 4


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = make_tiny(tmp_path_factory.mktemp("bad") / "qwen2", "qwen2", num_hidden_layers=2)
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][BAD] = torch.nan
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(params=[False, True], ids=["one by one", "overlapping"])
def core(tiny, request):
    scheduler = {"chunked_prefill_size": 16, "overlap": request.param}
    with core_of(make_recipe(tiny, memory={"page_size": PAGE}, scheduler=scheduler)) as made:
        yield made


def mates():
    """Four streams of all kinds."""
    kinds = [{"temperature": 0.0}, {"seed": 1}, {"seed": 2, "top_p": 0.9}, {"seed": 3, "repetition_penalty": 1.2}]
    prompts = random_prompts(4, [9, 21], vocab=BAD - 1)
    params = [SamplingParams(max_tokens=20, logit_bias=((BAD, -100.0),), ignore_eos=True, **kind) for kind in kinds]
    return [GenerateRequest(f"m{number}", *pair) for number, pair in enumerate(zip(prompts, params, strict=True))]


def bad(prompt=(67, BAD, 73), **params):
    return GenerateRequest("bad", list(prompt), SamplingParams(**{"max_tokens": 8, "ignore_eos": True, **params}))


def outcome(core, requests, late=()):
    """Tokens and last events by (request, index); `late` come once all others have begun."""
    for request in requests:
        core.add(request)
    tokens, last, waiting = {}, {}, list(late)
    while core.has_work or waiting:
        for event in core.step():
            key = event.request_id, event.index
            tokens.setdefault(key, []).extend(event.token_ids)
            assert key not in last or last[key].finish_reason is None
            last[key] = event
        core.scheduler.check_invariants()
        if waiting and all((one.id, 0) in tokens for one in requests):
            core.add(waiting.pop(0))
    return tokens, last


@pytest.mark.parametrize(
    "params",
    [{"temperature": 0.0}, {"seed": 1}, {"seed": 1, "top_k": 5, "logprobs": 3}, {"seed": 1, "n": 3}],
    ids=["greedy", "drawn", "log-probabilities", "three completions"],
)
def test_a_row_that_is_not_finite_ends_its_request_alone(core, params):
    alone = {key: value for one in mates() for key, value in run(core, [one]).items()}
    tokens, last = outcome(core, mates(), late=[bad(**params)])
    assert {key: tokens[key] for key in alone} == alone
    for index in range(params.get("n", 1)):
        event = last["bad", index]
        assert (event.finish_reason, event.token_ids, tokens["bad", index]) == ("error", [], [])
        assert "non-finite logits for output token 0, behind token id 73 at position 2" in event.error
    stats = core.stats()
    assert (stats["failed"], stats["aborted"]) == (1, 0)
    assert stats["pages_free"] + stats["pages_evictable"] == stats["pages_total"]


def test_a_token_that_is_fed_back_fails_where_it_was_generated(core):
    request = bad([5, 6, 7], temperature=0.0, logit_bias=((BAD, 100.0),))
    tokens, last = outcome(core, [*mates(), request])
    assert tokens["bad", 0] == [BAD]
    assert f"output token 1, behind token id {BAD} at position 3, after its bias" in last["bad", 0].error


def test_a_failed_request_leaves_nothing_in_the_prefix_cache(core):
    prompt = [*range(5, 25), BAD, *range(30, 50)]  # the bad token lies in the second of three chunks
    outcome(core, [bad(prompt)])
    [again] = greedy([prompt[:20]], 1)
    _, last = outcome(core, [again])
    assert last["r0", 0].cached_tokens == 0


def test_who_shares_a_prefix_with_a_failed_request_goes_on(core):
    head = random_prompts(1, [17], vocab=BAD - 1)[0]
    others = greedy([[*head, number] for number in (5, 6)], 12)
    alone = {key: value for one in others for key, value in run(core, [one]).items()}
    assert core.flush_cache()
    tokens, last = outcome(core, others, late=[bad([*head, BAD])])
    assert {key: tokens[key] for key in alone} == alone
    assert last["bad", 0].cached_tokens == 16
    assert last["bad", 0].finish_reason == "error"


def test_a_request_that_spoils_its_own_logits_takes_no_prefix_from_others(core):
    head = random_prompts(1, [17], vocab=BAD - 1)[0]
    outcome(core, greedy([head], 1))
    spoiled = bad(head, temperature=1.0, min_tokens=2, stop_token_ids=tuple(range(512)))  # nothing is left to draw
    _, last = outcome(core, [spoiled])
    assert "after its bias, penalties and bans" in last["bad", 0].error
    _, last = outcome(core, greedy([head], 1))
    assert last["r0", 0].cached_tokens == 16


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"seed": 3}])
def test_a_bias_beyond_all_numbers_ends_its_request_alone(core, params):
    alone = {key: value for one in mates() for key, value in run(core, [one]).items()}
    huge = bad([5, 6], logit_bias=((7, 3e38), (8, 3e38)), repetition_penalty=1e-30, **params)
    tokens, last = outcome(core, mates(), late=[huge])
    assert {key: tokens[key] for key in alone} == alone
    assert last["bad", 0].finish_reason == "error"


@pytest.mark.parametrize("fusion", ["auto", []], ids=["fused", "plain"])
@pytest.mark.parametrize(
    ("weight", "op", "named"),
    [
        ("model.layers.1.mlp.down_proj.weight", ("ffn", "linear"), "model.layers.1.mlp"),
        ("model.embed_tokens.weight", ("embedding",), "model.embed_tokens.weight holds such numbers"),
        ("model.norm.weight", ("rms_norm",), "model.norm.weight holds such numbers"),
        ("lm_head.weight", ("lm_head",), "lm_head.weight"),
    ],
)
def test_a_load_names_the_first_op_and_the_weights_that_are_not_finite(tmp_path, weight, op, named, fusion):
    folder = make_tiny(tmp_path / "nan", "qwen2", num_hidden_layers=2)
    weights = load_file(folder / "model.safetensors")
    weights[weight].view(-1)[5] = torch.nan
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with core_of(make_recipe(folder, fusion={"policies": fusion})) as core, pytest.raises(CheckpointInvalid) as caught:
        core.warm_up()
    said = str(caught.value)
    assert "at warm-up the model computes NaN or infinity" in said
    assert f"the first op with a result that is not finite is {op[0]} " in said or (
        f"the first op with a result that is not finite is {op[-1]} " in said
    )
    assert named in said.partition("the first op")[2]


def test_a_model_with_a_bad_row_that_no_warm_up_meets_loads(tiny):
    with core_of(make_recipe(tiny)) as core:
        core.warm_up()
