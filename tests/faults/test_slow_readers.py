"""Clients that read slowly or not at all: neighbours go on, memory stays bounded, and a limit cuts them off."""

import contextlib
import json
import socket
import time

import pytest

from support.deploying import free_port
from support.processes import served, wait_until
from support.tiny_models import make_tiny

START_S = 120
SEND_TIMEOUT_S = 3
READERS = 8
SMALL_BUFFER = 4096  #: of the client's socket, so that the answer soon waits in the server
MODEL = {"tokenizer": True, "max_position_embeddings": 4096}


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    folder = tmp_path_factory.mktemp("slow")
    port = free_port()
    recipe = {
        "version": 1,
        "name": "slow",
        "model": {"source": str(make_tiny(folder / "model", "llama", **MODEL)), "dtype": "float32"},
        "backend": {"name": "cpu", "threads": 1},
        "memory": {"kv_tokens": 65536},
        "server": {"port": port, "served_name": "tiny", "limits": {"send_timeout": f"{SEND_TIMEOUT_S}s"}},
    }
    with served(folder, recipe, START_S) as found:
        yield found


def opened(service, path, **fields):
    """A connection that has sent a request and reads nothing."""
    body = json.dumps(fields).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
    one.connect(("127.0.0.1", int(service.url.rsplit(":", 1)[1])))
    one.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return one


def long_stream(service):
    # the answers of `/generate` are cumulative: some hundred tokens are megabytes
    sampling = {"max_new_tokens": 1500, "ignore_eos": True, "temperature": 0, "n": 4}
    return opened(service, "/generate", text="slow", sampling_params=sampling, stream=True)


def running(service):
    lines = service.client.get("/metrics").text.splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith("anychip:num_running_reqs"))


def text_of(service):
    fields = {"prompt": "quick", "max_tokens": 40, "temperature": 0, "ignore_eos": True}
    return service.complete(**fields).json()["choices"][0]["text"]


def is_cut_off(reader):
    """Whether the other side has closed, whatever lies unread."""
    reader.setblocking(False)
    try:
        while reader.recv(65536):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    return True


@pytest.mark.parametrize("a_byte_a_second", [False, True], ids=["not-at-all", "a-byte-a-second"])
def test_neighbours_go_on_memory_is_bounded_and_the_limit_ends_it(service, a_byte_a_second):
    alone = text_of(service)
    server = service.worker().parent()
    before_bytes, cut_off = server.memory_info().rss, times_cut_off(service)
    with contextlib.ExitStack() as stack:
        readers = [stack.enter_context(long_stream(service)) for _ in range(READERS)]
        wait_until(lambda: running(service) > 0, what="a running request")
        deadline_s, read_s = time.monotonic() + START_S, time.monotonic()
        while running(service) > 0:
            assert text_of(service) == alone
            assert server.memory_info().rss - before_bytes < 256e6  # undelivered events, and what the allocator keeps
            assert time.monotonic() < deadline_s
            if a_byte_a_second and time.monotonic() - read_s > 1:
                read_s = time.monotonic()
                for reader in readers:
                    with contextlib.suppress(ConnectionError):
                        reader.recv(1)
        wait_until(lambda: not established(server), START_S, "the end of all connections")
        assert all(is_cut_off(reader) for reader in readers)
    assert times_cut_off(service) == cut_off + READERS
    assert text_of(service) == alone


def times_cut_off(service):
    return service.log.read_text().count("server.limits.send_timeout")


def established(server):
    """Connections that wait for their readers; the tests' own client keeps one."""
    return [one for one in server.net_connections("tcp") if one.status in {"ESTABLISHED", "CLOSE_WAIT"}][1:]
