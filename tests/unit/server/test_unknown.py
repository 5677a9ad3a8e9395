"""Unknown fields: refused by a strict service, ignored and named by a lenient one."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from support.local_client import Asker

BODIES = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi", "mood": 1}], "zzz": 1},
    "/v1/completions": {"prompt": "hi", "zzz": 1},
    "/generate": {"text": "hi", "zzz": 1, "sampling_params": {"mood": 1}},
    "/tokenize": {"prompt": "hi", "zzz": 1},
    "/detokenize": {"tokens": [65], "zzz": 1},
}
NAMED = {"/v1/chat/completions": "messages[0].mood, zzz", "/generate": "zzz, sampling_params.mood"}


@pytest.mark.parametrize("path", BODIES)
def test_a_strict_service_refuses_them_by_name(path):
    reply = Asker().post(path, BODIES[path])
    assert reply.status_code == 400
    assert "zzz: unknown parameter" in reply.json()["error"]["message"]
    assert "x-ignored-fields" not in reply.headers


@pytest.mark.parametrize("path", BODIES)
def test_a_lenient_service_ignores_names_and_counts_them(path):
    asker = Asker(unknown_fields="lenient")
    reply = asker.post(path, BODIES[path])
    assert reply.status_code == 200
    assert reply.headers["x-ignored-fields"] == NAMED.get(path, "zzz")
    counted = {
        sample.labels["endpoint"]: sample.value
        for family in text_string_to_metric_families(asker.ask("GET", "/metrics").text)
        for sample in family.samples
        if sample.name == "anychip:ignored_fields_total"
    }
    assert counted == {path: NAMED.get(path, "zzz").count(",") + 1}


def test_a_stream_names_them_before_it_begins():
    asker = Asker(unknown_fields="lenient")
    assert asker.complete(stream=True, zzz=1).headers["x-ignored-fields"] == "zzz"


def test_a_lenient_service_still_refuses_what_would_change_the_answer():
    reply = Asker(unknown_fields="lenient").chat(guided_json={"type": "object"}, zzz=1)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "guided_json"


def test_names_that_no_header_can_carry_are_quoted_and_many_are_cut():
    asker = Asker(unknown_fields="lenient")
    fields = {"a\r\nSet-Cookie: x": 1, "狐": 1, "long" * 100: 1, **{f"f{i}": 1 for i in range(30)}}
    header = asker.complete(**fields).headers["x-ignored-fields"]
    assert header.startswith("a%0D%0ASet-Cookie%3A x, %E7%8B%90, longlong")
    assert header.endswith(", ...")
    assert len(header) < 2000


def test_nothing_ignored_needs_no_header():
    assert "x-ignored-fields" not in Asker(unknown_fields="lenient").complete(seed=None).headers
