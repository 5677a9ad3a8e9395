"""Health, models, metrics, tokens, keys, limits."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from anychip.server.app import ROUTES
from anychip.server.metrics import Metrics, TokenRate, kv_gauges
from anychip_sdk.errors import EngineDead
from support.local_client import Asker
from support.stub_core import StubCore


def metric(asker, name):
    page = asker.ask("GET", "/metrics").text
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == name and not sample.labels:
                return sample.value
    raise KeyError(name)


@pytest.mark.parametrize("path", ["/health", "/ready"])
@pytest.mark.parametrize(("state", "status"), [("ready", 200), ("loading", 503), ("dead", 503), ("restarting", 503)])
def test_health_is_good_only_while_requests_are_taken(path, state, status):
    asker = Asker()
    asker.client.state = state
    reply = asker.ask("GET", path)
    assert reply.status_code == status
    assert reply.json()["status"] == state
    if state == "loading":
        assert reply.json()["progress"] == {"stage": "weights", "done": 1, "total": 2, "detail": "half"}


@pytest.mark.parametrize("state", ["hung", "dead", "restarting"])
def test_health_says_why_it_is_not_good(state):
    asker = Asker()
    asker.client.state, asker.client.problem = state, "a step has been running for 21 s"
    reply = asker.ask("GET", "/health")
    assert (reply.status_code, reply.json()["reason"]) == (503, "a step has been running for 21 s")


def test_health_of_a_service_that_is_well_has_no_reason():
    assert Asker().ask("GET", "/health").json() == {"status": "ready"}


def test_a_draining_service_takes_no_more_requests():
    asker = Asker()
    asker.service.drain()
    assert asker.ask("GET", "/health").status_code == 503
    assert asker.complete().status_code == 503


def test_models_lists_every_name():
    asker = Asker(aliases=("other/name",))
    assert [card["id"] for card in asker.ask("GET", "/v1/models").json()["data"]] == ["stub", "other/name"]
    assert asker.ask("GET", "/v1/models/other/name").json()["root"] == "stub"
    assert asker.ask("GET", "/v1/models/none").status_code == 404


def test_text_and_tokens_convert_both_ways():
    asker = Asker()
    reply = asker.post("/tokenize", {"prompt": "hé"}).json()
    assert reply["tokens"] == list("hé".encode())
    assert reply["count"] == 3
    assert asker.post("/detokenize", {"tokens": reply["tokens"]}).json() == {"text": "hé"}
    assert asker.post("/detokenize", {"tokens": [5000]}).json()["error"]["param"] == "tokens"


def test_the_cache_is_flushed_only_when_nothing_runs():
    asker = Asker()
    assert asker.ask("POST", "/flush_cache").json() == {"flushed": True}
    asker.core.flush_cache = lambda: False
    assert asker.ask("POST", "/flush_cache").status_code == 400


def test_nothing_is_changed_by_get():
    asker = Asker()
    asker.core.flush_cache = lambda: pytest.fail("flushed")
    for path in (route.path for route in ROUTES if route.methods and "POST" in route.methods):
        for method in ("GET", "HEAD"):
            reply = asker.ask(method, path)
            assert (reply.status_code, reply.headers["allow"]) == (405, "POST")


def test_server_info_shows_the_plan_and_the_engines_numbers_but_no_key():
    asker = Asker(plan={"backend": "reference"}, api_key="secret")
    reply = asker.ask("GET", "/server_info", headers={"authorization": "Bearer secret"})
    assert reply.json()["plan"] == {"backend": "reference"}
    assert reply.json()["stats"]["pages_total"] == 10
    assert "secret" not in reply.text
    assert "secret" not in repr(asker.network)


def test_before_any_worker_was_ready_what_needs_its_model_is_refused_for_now():
    asker = Asker()
    asker.client.model = None
    for path in ("/v1/models", "/server_info"):
        reply = asker.ask("GET", path)
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "engine_unavailable")


@pytest.mark.parametrize("emulated", [False, True])
def test_an_emulated_device_is_told_by_server_info_and_metrics(emulated):
    asker = Asker(emulated=emulated)
    assert asker.ask("GET", "/server_info").json()["emulated"] is emulated
    assert metric(asker, "anychip:emulated") == emulated


@pytest.mark.parametrize(
    ("header", "status"),
    [(None, 401), ("Bearer wrong", 401), ("Basic secret", 401), ("Bearer secret", 200), ("bearer secret", 200)],
)
def test_a_key_is_asked_for_where_one_is_set(header, status):
    asker = Asker(api_key="secret")
    reply = asker.ask("GET", "/v1/models", headers={} if header is None else {"authorization": header})
    assert reply.status_code == status
    if status == 401:
        assert reply.json()["error"]["code"] == "invalid_api_key"
    assert asker.ask("GET", "/health").status_code == 200


def test_unknown_paths_and_methods_answer_in_the_same_shape():
    asker = Asker()
    assert asker.ask("GET", "/nope").json()["error"]["code"] == 404
    wrong = asker.ask("GET", "/v1/completions")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, 405)


@pytest.mark.parametrize("stream", [False, True])
def test_a_full_queue_is_429_before_any_header_of_a_stream(stream):
    asker = Asker(core=StubCore(max_queued=0))
    reply = asker.chat(stream=stream)
    assert reply.status_code == 429
    assert reply.headers["retry-after"] == "2"
    assert reply.json()["error"]["type"] == "rate_limit_error"


def test_of_several_prompts_none_runs_when_one_is_refused():
    asker = Asker(core=StubCore(max_queued=1, endless=True))
    assert asker.complete(["a", "b"]).status_code == 429
    assert asker.core.running == []


def test_metrics_count_requests_and_tokens():
    asker = Asker(["a", "b"])
    asker.complete(n=2)
    asker.chat(stream=True)
    assert metric(asker, "anychip:num_requests_total") == 2
    assert metric(asker, "anychip:generation_tokens_total") == 6
    assert metric(asker, "anychip:time_to_first_token_seconds_count") == 2
    assert metric(asker, "anychip:e2e_request_latency_seconds_count") == 2
    assert metric(asker, "anychip:num_aborted_requests_total") == 0
    assert metric(asker, "anychip:num_running_reqs") == 0
    assert metric(asker, "anychip:startup_time_seconds") == 1.5


def test_unknown_paths_share_one_label():
    asker = Asker()
    for number in range(5):
        asker.ask("GET", f"/nope/{number}")
    page = asker.ask("GET", "/metrics").text
    assert 'endpoint="other",method="GET"} 5.0' in page
    assert "/nope" not in page


def test_statistics_of_any_name_can_be_shown():
    page = Metrics().render({"prompt_tokens": 3.0, "odd name!": 1.0, "running": 2.0}).decode()
    assert "anychip:engine_prompt_tokens 3.0" in page
    assert "anychip:engine_odd_name_ 1.0" in page
    assert "anychip:num_running_reqs 2.0" in page


def test_what_is_not_told_any_more_is_not_shown_any_more():
    metrics = Metrics()
    before = metrics.render({"running": 2.0, "pages_total": 9.0, "pages_free": 3.0, "odd name!": 1.0}).decode()
    assert "anychip:engine_pages_free 3.0" in before
    after = metrics.render({"running": 0.0}).decode()
    assert "anychip:num_running_reqs 0.0" in after
    assert "anychip:token_usage 0.0" in after
    assert not [line for line in after.splitlines() if "pages" in line or "kv_" in line or "odd" in line]
    assert "anychip:engine_pages_free 4.0" in metrics.render({"pages_free": 4.0}).decode()


def test_metrics_are_the_last_that_were_told_where_the_engine_does_not_answer():
    asker = Asker()

    async def never(_patience_s=None):
        raise EngineDead("the engine gave no answer for 1 s")

    asker.client.stats = never
    asker.client.last_stats = lambda: {"running": 3.0, "stats_age_seconds": 7.0}
    assert metric(asker, "anychip:num_running_reqs") == 3
    assert metric(asker, "anychip:engine_stats_age_seconds") == 7
    assert asker.ask("GET", "/server_info").json()["stats"] == {"running": 3.0, "stats_age_seconds": 7.0}


def test_pages_are_shown_as_tokens():
    stats = {"pages_total": 10, "pages_free": 4, "pages_evictable": 1, "page_size": 16}
    stats |= {"prompt_tokens": 8, "cached_tokens": 2}
    gauges = kv_gauges(stats)
    assert gauges["kv_available_tokens"] == 64
    assert gauges["kv_used_tokens"] == 80
    assert gauges["token_usage"] == 0.5
    assert gauges["cache_hit_rate"] == 0.25


def test_throughput_is_over_the_last_whole_seconds():
    rate = TokenRate()
    for second in range(100, 130):
        rate.add(20, second + 0.5)
    assert rate.per_second(130.1) == 20
    assert rate.per_second(135.1) == 10
    assert rate.per_second(200.0) == 0


def test_the_log_has_one_line_a_request_no_prompt_and_no_probe(capsys):
    asker = Asker(["reply-text"])
    asker.chat("secret-prompt")
    for path in ("/health", "/ready", "/metrics"):
        asker.ask("GET", path)
    said = "".join(capsys.readouterr())
    assert said.count("\n") == 1
    assert "/v1/chat/completions" in said
    assert "secret-prompt" not in said
    assert "reply-text" not in said
