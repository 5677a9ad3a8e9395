"""Whatever a body holds, it is answered or refused; it is never an internal error."""

import json

import hypothesis
import pytest
from hypothesis import strategies

from anychip.server.openai.protocol import ChatRequest, CompletionRequest
from support.local_client import Asker

ASKER = Asker()
NUMBERS = (
    strategies.integers() | strategies.sampled_from([10**20, 10**400, -(10**400), 2**63, -1, 0]) | strategies.floats()
)
LEAVES = strategies.none() | strategies.booleans() | NUMBERS | strategies.text(max_size=8)
NAMES = strategies.text(max_size=5)


def containers(inner):
    return strategies.lists(inner, max_size=4) | strategies.dictionaries(NAMES, inner, max_size=4)


VALUES = strategies.recursive(LEAVES, containers, max_leaves=8)
#: What 998 and 999 as tokens do is the stub's own business.
PATHS = {
    "/v1/completions": ({"prompt": "hi"}, sorted(CompletionRequest.model_fields)),
    "/v1/chat/completions": ({"messages": [{"role": "user", "content": "hi"}]}, sorted(ChatRequest.model_fields)),
    "/generate": ({"text": "hi"}, ["text", "input_ids", "sampling_params", "stream", "rid", "model"]),
    "/tokenize": ({"prompt": "hi"}, ["prompt", "model", "add_special_tokens"]),
    "/detokenize": ({"tokens": [1]}, ["tokens", "model", "skip_special_tokens"]),
}


@pytest.mark.parametrize("path", PATHS)
@hypothesis.given(data=strategies.data())
@hypothesis.settings(
    derandomize=True, max_examples=60, deadline=None, suppress_health_check=list(hypothesis.HealthCheck)
)
def test_no_body_is_an_internal_error(path, data):
    base, fields = PATHS[path]
    drawn = data.draw(strategies.dictionaries(strategies.sampled_from(fields), VALUES, max_size=3))
    content = json.dumps({**base, **drawn}).encode()
    hypothesis.assume(b"998" not in content)
    reply = ASKER.ask("POST", path, content=content, headers={"content-type": "application/json"})
    assert reply.status_code < 500, reply.text
