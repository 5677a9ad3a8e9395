"""What is refused at once, and the estimate of what running sequences will still write."""

import math
from typing import Any

import pytest

from anychip.engine.admission import OutputEstimate, validate
from anychip.engine.request import GenerateRequest, SamplingParams
from anychip.engine.sequence import Sequence
from anychip_sdk.errors import RequestInvalid
from support.schedules import VOCAB, config


def refusal(
    prompt: list[int], pages: int = 100, settings: dict[str, Any] | None = None, **params: Any
) -> RequestInvalid:
    with pytest.raises(RequestInvalid) as caught:
        validate(GenerateRequest("r", prompt, SamplingParams(**params)), config(**(settings or {})), pages)
    return caught.value


def test_a_prompt_that_fills_the_context_is_refused_with_both_numbers() -> None:
    error = refusal([1] * 20, settings={"context_length": 20})
    assert "20 tokens, the context 20" in error.message
    assert (error.param, error.code) == ("prompt", "context_length_exceeded")


def test_a_prompt_that_never_fits_the_pool_is_refused_with_both_numbers() -> None:
    error = refusal([1] * 16, pages=4)
    assert "need 5 pages" in error.message
    assert "the KV pool has 4" in error.message
    validate(GenerateRequest("r", [1] * 15), config(), 4)


@pytest.mark.parametrize("token", [-1, VOCAB, 1 << 40])
def test_ids_outside_the_vocabulary_are_refused_by_name(token: int) -> None:
    assert refusal([1, token]).param == "prompt"
    assert refusal([1], stop_token_ids=(token,)).param == "stop_token_ids"
    assert refusal([1], logit_bias=((token, 1.0),)).param == "logit_bias"


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("n", 0),
        ("n", 9),
        ("max_tokens", 0),
        ("min_tokens", -1),
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -1),
        ("min_p", 1.5),
        ("repetition_penalty", 0.0),
        ("presence_penalty", math.nan),
        ("frequency_penalty", math.inf),
        ("logit_bias", ((1, math.nan),)),
        ("logit_bias", ((1, 1e300),)),
        ("top_k", 10**400),
        ("temperature", 1e300),
        ("repetition_penalty", 1e-300),
        ("repetition_penalty", math.nan),
        ("presence_penalty", -1e300),
        ("frequency_penalty", 1e39),
    ],
)
def test_numbers_out_of_range_are_refused_by_name(param: str, value: Any) -> None:
    assert refusal([1], **{param: value}).param == param


def test_an_empty_prompt_and_more_minimum_than_maximum_are_refused() -> None:
    assert refusal([]).param == "prompt"
    assert refusal([1], min_tokens=5, max_tokens=4).param == "min_tokens"


@pytest.mark.parametrize("name", ["chunked_prefill_size", "max_running_requests", "page_size"])
def test_a_configuration_of_zero_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        config(**{name: 0})


def test_no_request_may_wait_but_not_fewer_than_none() -> None:
    assert config(max_queued_requests=0).max_queued_requests == 0
    with pytest.raises(ValueError, match="max_queued_requests is -1, at least 0 is expected"):
        config(max_queued_requests=-1)


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="priority"):
        config(policy="priority")


def test_short_remainders_count_in_full_and_long_ones_by_ratio() -> None:
    estimate = OutputEstimate(max_length=100_000)

    def tokens(max_tokens: int | None) -> int:
        return estimate.tokens(Sequence(GenerateRequest("r", [1], SamplingParams(seed=1, max_tokens=max_tokens))))

    assert tokens(10) == 10
    assert tokens(1000) == 700
    assert tokens(None) == tokens(50_000) == int(4096 * 0.7)
    for _ in range(10_000):
        estimate.step()
    assert tokens(1000) == 100
    assert tokens(100) == 64
    estimate.retracted()
    assert tokens(1000) == 400
    estimate.idle()
    assert tokens(1000) == 700


def test_the_end_of_the_context_bounds_the_estimate() -> None:
    estimate = OutputEstimate(max_length=30)
    assert estimate.tokens(Sequence(GenerateRequest("r", [1] * 25, SamplingParams(seed=1)))) == 5
