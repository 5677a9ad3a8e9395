"""What the log says of a request, and the id that it carries."""

import asyncio

import pytest
import structlog
from structlog.testing import capture_logs

from anychip.server.lobby import Lobby
from anychip.server.network import Network
from support.local_client import Asker, RawRequest
from support.stub_core import StubCore

SECRET = "whisper"  # stands for what users write and say


def lines_of(asker, *request, **arguments):
    """The reply to a request, and what was logged of it."""
    with capture_logs(processors=[structlog.contextvars.merge_contextvars]) as logs:
        reply = asker.ask(*request, **arguments)
    return reply, logs


def line_of(asker, *request, **arguments):
    reply, logs = lines_of(asker, *request, **arguments)
    (line,) = [one for one in logs if one["event"] == "request"]
    assert line["request_id"] == reply.headers["x-request-id"]
    return reply, line


CHAT = {"messages": [{"role": "user", "content": SECRET}]}


@pytest.mark.parametrize("stream", [False, True])
def test_the_line_of_a_completion_says_who_what_how_long_and_how_many_tokens(stream):
    asker = Asker(["a", "b", "c"], api_key="key")
    headers = {"Authorization": "Bearer key", "X-Request-Id": "mine-1"}
    body = {"prompt": SECRET, "max_tokens": 2, "stream": stream}
    reply, line = line_of(asker, "POST", "/v1/completions", json=body, headers=headers)
    assert reply.headers["x-request-id"] == "mine-1"
    assert line.pop("duration_s") >= 0
    assert line.pop("client").startswith("127.0.0.1:")
    assert line.pop("generation").startswith("cmpl-")
    assert line == {
        "event": "request",
        "log_level": "info",
        "request_id": "mine-1",
        "method": "POST",
        "path": "/v1/completions",
        "status": 200,
        "key": "test",
        "prompt_tokens": len(SECRET),
        "completion_tokens": 2,
        "cached_tokens": 1,
        "finish": "length",
    }


REFUSED = {
    "a wrong value": ({**CHAT, "temperature": SECRET}, 400, "invalid_request", "temperature"),
    "a wrong message": (
        {"messages": [{"role": SECRET, "content": SECRET}]},
        400,
        "invalid_request",
        "messages[0].role",
    ),
    "too many choices": ({**CHAT, "n": 100_000}, 400, "limit_exceeded", "n"),
    "another model": ({**CHAT, "model": SECRET}, 404, "model_not_found", "model"),
}


@pytest.mark.parametrize(("body", "status", "error", "param"), REFUSED.values(), ids=REFUSED)
def test_the_line_of_a_refusal_names_the_reason_and_the_field_but_no_value(body, status, error, param):
    reply, line = line_of(Asker(), "POST", "/v1/chat/completions", json=body)
    assert (reply.status_code, line["status"], line["error"], line["param"]) == (status, status, error, param)
    assert SECRET not in str(line)


@pytest.mark.parametrize(
    ("request_", "status", "error"),
    [
        (("POST", "/v1/completions", b"{", "application/json"), 400, "invalid_json"),
        (("POST", "/v1/completions", b"{}", "text/plain"), 415, "unsupported_media_type"),
        (("POST", "/v1/completions", b'{"prompt": "hi"}', None), 415, "unsupported_media_type"),
        (("POST", "/tokenize", b'{"prompt": "hi"}', None), 415, "unsupported_media_type"),
        (("POST", "/generate", b'{"text": "hi"}', "application/x-www-form-urlencoded"), 415, "unsupported_media_type"),
        (("GET", "/flush_cache", b"", None), 405, "Method Not Allowed"),
        (("GET", "/nowhere", b"", None), 404, "Not Found"),
        (("OPTIONS", "/v1/completions", b"", None), 405, "Method Not Allowed"),
    ],
)
def test_every_refusal_has_an_id_and_a_reason(request_, status, error):
    method, path, content, kind = request_
    headers = {} if kind is None else {"Content-Type": kind}
    reply, line = line_of(Asker(), method, path, content=content, headers=headers)
    assert (reply.status_code, line["error"]) == (status, error)


def test_a_missing_key_is_a_reason():
    reply, line = line_of(Asker(api_key="key"), "POST", "/v1/completions", json={"prompt": "hi"})
    assert (reply.status_code, line["error"], "key" in line) == (401, "invalid_api_key", False)


GOOD_IDS = ["a", "req_1.2-3:4/5@6", "x" * 128, "~!#$%&'()"]
BAD_IDS = ["", "x" * 129, "two words", "tab\there", "\u00e9".encode("latin-1"), b"\x01", b"a\x7fb"]


@pytest.mark.parametrize("given", GOOD_IDS)
def test_a_good_id_comes_back(given):
    assert Asker().ask("GET", "/health", headers={"X-Request-Id": given}).headers["x-request-id"] == given


@pytest.mark.parametrize("given", BAD_IDS)
def test_an_id_that_no_log_should_hold_is_replaced_by_one_of_ours(given):
    reply = Asker().ask("GET", "/health", headers={"X-Request-Id": given})
    assert reply.headers["x-request-id"].isalnum()
    assert len(reply.headers["x-request-id"]) == 32


def test_requests_without_an_id_get_different_ones():
    asker = Asker()
    found = {asker.ask("GET", path).headers["x-request-id"] for path in ("/health", "/metrics", "/nowhere", "/health")}
    assert len(found) == 4


def test_two_requests_of_one_id_are_two_to_the_engine():
    asker = Asker(core=StubCore([[65]]))
    seen = []
    add = asker.core.add
    asker.core.add = lambda request: seen.append(request.id) or add(request)
    for _ in range(2):
        asker.post("/v1/completions", {"prompt": "hi"}, headers={"X-Request-Id": "same"})
    assert len(set(seen)) == 2
    assert all(one.startswith("same/cmpl-") for one in seen)


def test_an_unforeseen_error_is_a_500_with_an_id_a_line_and_a_traceback():
    asker = Asker()
    asker.tokenizer.encode = lambda *_: 1 / 0
    reply, logs = lines_of(asker, "POST", "/v1/completions", json={"prompt": "hi"})
    assert reply.status_code == 500
    failure, line = logs
    assert failure["event"] == "request failed"
    assert isinstance(failure["exc_info"], ZeroDivisionError)
    assert failure["request_id"] == line["request_id"] == reply.headers["x-request-id"]
    assert (line["status"], line["error"]) == (500, "internal_error")
    responses = asker.service.metrics.http_responses.labels("/v1/completions", "500")
    assert responses._value.get() == 1


def test_a_stream_that_breaks_says_so_in_its_line():
    asker = Asker(core=BreakingCore([[65]], endless=True), context_length=100)
    _, logs = lines_of(asker, "POST", "/v1/completions", json={"prompt": "hi", "max_tokens": 50, "stream": True})
    line = logs[-1]
    assert (line["status"], line["error"], line["finish"]) == (200, "engine_error", "error")


class BreakingCore(StubCore):
    """Raises in its third step."""

    def step(self):
        if self.steps >= 2:
            raise RuntimeError("oh")
        return super().step()


async def _leave(asker):
    request = RawRequest(asker, "/v1/completions", {"prompt": "hi", "max_tokens": 10_000})
    async with request.running() as task:
        while not asker.core.running:
            await asyncio.sleep(0)
        request.left.set()
        while not task.done():
            await asyncio.sleep(0)


def test_a_client_that_leaves_is_a_499_with_what_was_computed_until_then():
    asker = Asker(core=StubCore([[65]], endless=True), context_length=10**6)
    with capture_logs() as logs:
        asyncio.run(_leave(asker))
    line = logs[-1]
    assert (line["status"], line["finish"]) == (499, "abort")
    assert line["generation"].startswith("cmpl-")


def test_probes_are_logged_only_where_they_are_refused():
    asker = Asker(network={"allowed_hosts": ["api.example"]})
    for host, lines in (("127.0.0.1", 0), ("evil.example", 1)):
        _, logs = lines_of(asker, "GET", "/health", headers={"Host": host})
        assert len(logs) == lines


def test_what_loads_still_has_ids_and_lines_too():
    asker = Asker()
    asker.app = Lobby(asker.client, Network())
    reply, line = line_of(asker, "POST", "/v1/completions", json={"prompt": "hi"})
    assert (reply.status_code, line["error"]) == (503, "engine_unavailable")
    assert asker.ask("GET", "/health", headers={"X-Request-Id": "h"}).headers["x-request-id"] == "h"


def test_the_service_is_idle_when_nothing_but_probes_is_answered():
    asker = Asker(core=StubCore([[65]], endless=True), context_length=10**6)

    async def run():
        request = RawRequest(asker, "/v1/completions", {"prompt": "hi", "max_tokens": 10_000, "stream": True})
        assert asker.service.is_idle.is_set()
        async with request.running():
            await request.got.get()
            assert not asker.service.is_idle.is_set()
            assert (await asker._ask("GET", "/health", {})).status_code == 200
            assert not asker.service.is_idle.is_set()
            request.left.set()
            await asyncio.wait_for(asker.service.is_idle.wait(), 5)

    asyncio.run(run())
