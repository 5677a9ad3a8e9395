"""Floods of headers, connections and halves of requests: each is ended by its limit, and others are served."""

import contextlib
import json
import select
import socket
import time

import pytest

from anychip.server.serve import allow_files
from support.deploying import free_port
from support.processes import served, wait_until
from support.tiny_models import make_tiny

START_S = 120
CONNECTIONS = 200
HALF_SENT = 2000
HEADER_TIMEOUT_S = 2
LIMITS = {
    "connections": CONNECTIONS,
    "header_timeout": f"{HEADER_TIMEOUT_S}s",
    "body_timeout": f"{HEADER_TIMEOUT_S}s",
    "idle_timeout": "5s",
}
GET = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    folder = tmp_path_factory.mktemp("floods")
    port = free_port()
    recipe = {
        "version": 1,
        "name": "floods",
        "model": {"source": str(make_tiny(folder / "model", "llama", tokenizer=True)), "dtype": "float32"},
        "backend": {"name": "cpu", "threads": 1},
        "memory": {"kv_tokens": 4096},
        "server": {"port": port, "served_name": "tiny", "limits": LIMITS},
    }
    with served(folder, recipe, START_S) as found:
        yield found


@pytest.fixture
def watched(service):
    """The server's memory and descriptors are as before, and its answers too."""
    server, alone = service.worker().parent(), text_of(service)
    memory_bytes, files = server.memory_info().rss, server.num_fds()
    yield service
    wait_until(lambda: server.num_fds() < files + 10, START_S, "the end of all connections")
    assert server.memory_info().rss - memory_bytes < 60e6
    assert text_of(service) == alone
    assert service.health() == "ready"


def text_of(service):
    """What a client of its own is answered, while others flood."""
    reply = service.complete(prompt="quick", max_tokens=8, temperature=0, ignore_eos=True)
    return reply.json()["choices"][0]["text"]


def connected(service):
    return socket.create_connection(("127.0.0.1", int(service.url.rsplit(":", 1)[1])), timeout=60)


def answer_to(service, *parts):
    """All that comes back; nothing where the other side closes before all is sent."""
    with connected(service) as one, contextlib.suppress(ConnectionError):
        for part in parts:
            one.sendall(part)
        found = b""
        while piece := one.recv(65536):
            found += piece
        return found
    return b""


MANY = b"".join(b"X-%d: 1\r\n" % number for number in range(5000))
FLOODS = {
    "thousands of headers": [GET + MANY + b"\r\n"],
    "a header without end": [GET + b"X: ", *[b"a" * 65536] * 64],
    "a name without end": [GET, *[b"a" * 65536] * 64],
    "headers without end": [GET, *[MANY] * 40],
    "a path without end": [b"GET /", *[b"a" * 65536] * 64],
    "trailers without end": [POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n", *[MANY] * 40],
}


@pytest.mark.parametrize("flood", FLOODS)
def test_a_flood_of_headers_is_refused_while_others_are_served(watched, flood):
    for _ in range(20):
        reply = answer_to(watched, *FLOODS[flood])
        assert reply == b"" or reply.startswith((b"HTTP/1.1 431", b"HTTP/1.1 400")), reply[:100]
        assert text_of(watched)


HALVES = {
    "nothing": b"",
    "half a line": b"GET /v1",
    "half of the headers": GET + b"X-A: 1",
    "half a body": POST + b"Content-Length: 100\r\n\r\n{",
    "half a chunk": POST + b"Transfer-Encoding: chunked\r\n\r\nff\r\n{",
}


@pytest.mark.parametrize("half", HALVES)
def test_thousands_of_half_requests_keep_nobody_out_for_longer_than_their_timeout(watched, half):
    allow_files(HALF_SENT + 1000)
    with contextlib.ExitStack() as stack:
        ones = [stack.enter_context(connected(watched)) for _ in range(HALF_SENT)]
        for one in ones:
            with contextlib.suppress(ConnectionError):
                one.sendall(HALVES[half])
        wait_until(lambda: answers(watched), HEADER_TIMEOUT_S + START_S, "an answer beside them")
        wait_until(lambda: all(map(is_ended, ones)), START_S, "the end of half requests")


def answers(service):
    body = json.dumps({"prompt": "quick", "max_tokens": 1}).encode()
    head = POST + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
    return answer_to(service, head + body).startswith(b"HTTP/1.1 200")


def is_ended(one):
    """Whether the other side has closed; what it said before is read."""
    one.setblocking(False)
    try:
        while one.recv(65536):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    return True


def test_a_request_sent_byte_by_byte_is_ended_in_time(watched):
    with connected(watched) as one:
        started_s = time.monotonic()
        with contextlib.suppress(ConnectionError):
            for _ in range(1000):
                one.sendall(b"G" if time.monotonic() - started_s < 0.5 else b"E")
                if select.select([one], [], [], 0.05)[0]:
                    break
        assert time.monotonic() - started_s < HEADER_TIMEOUT_S + 30
        assert b"200" not in one.recv(65536)[:20]
