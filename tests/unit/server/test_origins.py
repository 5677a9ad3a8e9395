"""Web pages: those that are listed may ask and read, all others may change nothing."""

import pytest

from anychip.server.lobby import Lobby
from support.local_client import Asker

PAGE = "https://chat.example.com"
PREFLIGHT = {
    "Origin": PAGE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,x-stainless-lang",
}
BODY = {"prompt": "hi", "max_tokens": 1}


@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "keys"
    path.write_text("secret\n")
    return {"file": str(path)}


def asker_for(*origins, **server):
    return Asker(["a"], network={"host": "0.0.0.0", "cors": list(origins), **server})


def test_a_preflight_needs_no_key(key_file):
    asker = asker_for(PAGE, api_key=key_file)
    for path in ("/v1/chat/completions", "/v1/completions", "/generate", "/tokenize", "/v1/models"):
        reply = asker.ask("OPTIONS", path, headers=PREFLIGHT)
        assert reply.status_code == 200
        assert reply.headers["access-control-allow-origin"] == PAGE
        assert "POST" in reply.headers["access-control-allow-methods"]
        allowed = reply.headers["access-control-allow-headers"]
        assert all(name in allowed for name in PREFLIGHT["Access-Control-Request-Headers"].split(","))
        assert reply.headers["x-request-id"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_listed_page_reads_replies_streams_and_errors_with_their_ids(key_file, stream):
    asker = asker_for(PAGE, api_key=key_file)
    for key, status in (("secret", 200), ("wrong", 401)):
        headers = {"Origin": PAGE, "Authorization": f"Bearer {key}", "Sec-Fetch-Site": "cross-site"}
        reply = asker.post("/v1/completions", {**BODY, "stream": stream}, headers=headers)
        assert reply.status_code == status
        assert reply.headers["access-control-allow-origin"] == PAGE
        assert "X-Request-Id" in reply.headers["access-control-expose-headers"]
        assert "Origin" in reply.headers["vary"]


def test_an_error_inside_can_be_read_by_the_page_too():
    asker = asker_for(PAGE)
    asker.tokenizer.encode = lambda *_: 1 / 0
    reply = asker.post("/v1/completions", BODY, headers={"Origin": PAGE})
    assert (reply.status_code, reply.headers["access-control-allow-origin"]) == (500, PAGE)


def test_cors_is_off_by_default():
    asker = asker_for()
    assert asker.ask("OPTIONS", "/v1/completions", headers=PREFLIGHT).status_code == 405
    reply = asker.ask("GET", "/v1/models", headers={"Origin": PAGE})
    assert not [name for name in reply.headers if name.startswith("access-control")]


@pytest.mark.parametrize("origin", ["https://evil.example", "http://chat.example.com", f"{PAGE}:444", "null"])
def test_a_page_that_is_not_listed_gets_no_preflight_and_no_header(origin):
    asker = asker_for(PAGE)
    assert asker.ask("OPTIONS", "/v1/completions", headers={**PREFLIGHT, "Origin": origin}).status_code == 400
    reply = asker.ask("GET", "/v1/models", headers={"Origin": origin})
    assert "access-control-allow-origin" not in reply.headers


def test_a_star_is_every_page():
    asker = asker_for("*")
    assert asker.ask("OPTIONS", "/v1/completions", headers=PREFLIGHT).headers["access-control-allow-origin"] == "*"
    reply = asker.post("/v1/completions", BODY, headers={"Origin": "null", "Sec-Fetch-Site": "cross-site"})
    assert (reply.status_code, reply.headers["access-control-allow-origin"]) == (200, "*")


def test_a_page_is_answered_while_the_model_loads():
    asker = asker_for(PAGE)
    asker.app = Lobby(asker.client, asker.network)
    assert asker.ask("OPTIONS", "/v1/completions", headers=PREFLIGHT).status_code == 200
    reply = asker.post("/v1/completions", BODY, headers={"Origin": PAGE})
    assert (reply.status_code, reply.headers["access-control-allow-origin"]) == (503, PAGE)


FOREIGN = [
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"},
    {"Origin": "http://stub:3000", "Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "cross-site"},
]


@pytest.mark.parametrize("headers", FOREIGN)
def test_a_page_of_another_origin_changes_nothing_of_a_service_without_a_key(headers):
    asker = asker_for()
    asker.core.flush_cache = lambda: pytest.fail("flushed")
    asker.core.add = lambda request: pytest.fail("generated")
    for path, arguments in (("/flush_cache", {}), ("/v1/completions", {"json": BODY})):
        reply = asker.ask("POST", path, headers=headers, **arguments)
        assert (reply.status_code, reply.json()["error"]["code"]) == (403, "foreign_origin")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "http://stub"},
        {"Origin": "https://behind.a.proxy", "Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "none"},
    ],
)
def test_programs_and_pages_of_the_service_itself_are_let_through(headers):
    asker = asker_for()
    assert asker.ask("POST", "/flush_cache", headers=headers).json() == {"flushed": True}
    assert asker.post("/v1/completions", BODY, headers=headers).status_code == 200


def test_where_a_key_is_wanted_the_key_decides(key_file):
    headers = {"Origin": "app://desktop", "Authorization": "Bearer secret"}
    assert asker_for(api_key=key_file).post("/v1/completions", BODY, headers=headers).status_code == 200
