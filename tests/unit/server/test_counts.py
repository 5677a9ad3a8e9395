"""JSON has one kind of number: a count is what it is, however it is written, and its limit holds for all of them."""

import pytest

from anychip.recipe.limits import LimitsSection
from support.local_client import Asker

LIMITS = LimitsSection(choices_per_prompt=4, choices=6)
COUNTS = ["n", "max_tokens", "min_tokens", "top_k", "seed", "stop_token_ids"]
WRITTEN = ["2.5", "-0.0", "1e5", "1e300", "1e999", "-1e300", '"2"', '"1e5"', "true", "[2]", "{}", "2e-1", "9" * 350]
BODIES = {
    "/v1/completions": '{"prompt": "a", GIVEN}',
    "/v1/chat/completions": '{"messages": [{"role": "user", "content": "hi"}], GIVEN}',
    "/generate": '{"text": "a", "sampling_params": {GIVEN}}',
}


def ask(path, given):
    """The asker and its reply."""
    asker = Asker(limits=LIMITS)
    content = BODIES[path].replace("GIVEN", given)
    return asker, asker.ask("POST", path, content=content, headers={"content-type": "application/json"})


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("written", WRITTEN)
@pytest.mark.parametrize("field", COUNTS)
def test_a_count_is_taken_within_its_limits_or_refused(path, field, written):
    name = "max_new_tokens" if (path, field) == ("/generate", "max_tokens") else field
    asker, reply = ask(path, f'"{name}": {written}')
    assert reply.status_code in {200, 400}, reply.text
    for request in asker.core.added:
        params = request.params
        assert 1 <= params.n <= LIMITS.choices_per_prompt
        assert all(type(count) is int for count in (params.n, params.max_tokens, params.min_tokens, params.top_k))


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("number", ["5", "5.0", "1e5", "100000.0", "1e300", "9" * 350])
def test_no_way_to_write_n_passes_its_limit(path, number):
    _, reply = ask(path, f'"n": {number}')
    assert reply.status_code == 400
    assert "the limit is 4 (server.limits.choices_per_prompt)" in reply.json()["error"]["message"]


@pytest.mark.parametrize("number", ["2", "2.0", "2e0", "20e-1"])
def test_a_whole_number_may_be_written_as_any_number(number):
    asker, _ = ask(
        "/v1/completions", f'"n": {number}, "max_tokens": {number}, "min_tokens": {number}, "top_k": {number}'
    )
    params = asker.core.added[0].params
    assert (params.n, params.max_tokens, params.min_tokens, params.top_k) == (2, 2, 2, 2)
