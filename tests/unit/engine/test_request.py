"""The wire format, and namespaces in which nothing collides."""

import msgspec

from anychip.engine.request import GenerateRequest, SamplingParams, TokenEvent, namespace_of


def test_requests_and_events_survive_the_wire() -> None:
    params = SamplingParams(seed=1, stop_token_ids=(1, 2), logit_bias=((3, -1.5),), n=2)
    request = GenerateRequest("r", [1, 2, 3], params, namespace="a", arrival_s=1.5)
    event = TokenEvent("r", 1, [4], "stop", stop_token_id=2, completion_tokens=5)
    for value in (request, event):
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=type(value)) == value


def test_tagged_namespaces_do_not_collide() -> None:
    names = [
        namespace_of(),
        namespace_of(adapter="x"),
        namespace_of(salt="x"),
        namespace_of(adapter="x", salt="y"),
        namespace_of(adapter="y", salt="x"),
        namespace_of(adapter="x;salt=1:y"),
        namespace_of(adapter="x", revision="2"),
    ]
    assert len(set(names)) == len(names)
    assert namespace_of(adapter="", salt="x") == namespace_of(salt="x")
