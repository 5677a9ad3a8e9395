"""A connection is bounded in time, headers and number; what it exceeds is named in the answer."""

import asyncio
import contextlib
import itertools
from functools import partial

import pytest
import uvicorn
from starlette.responses import PlainTextResponse, StreamingResponse

from anychip.recipe.limits import LimitsSection
from anychip.recipe.quantities import Seconds
from anychip.server.connection import Connection

LONG = Seconds(60)
LARGE = 32 * 1024 * 1024  #: more than the system's buffers hold


class Served:
    """A server of its own on a free port."""

    def __init__(self, port, connections):
        self._port = port
        self.connections = connections  #: as the server knows them
        self._writers = []

    async def open(self, **given):
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, **given)
        self._writers.append(writer)
        return reader, writer

    async def close(self):
        for writer in self._writers:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)

    async def ask(self, *parts):
        reader, writer = await self.open()
        with contextlib.suppress(ConnectionError):
            for part in parts:
                writer.write(part)
                await writer.drain()
        return await whole(reader)


async def whole(reader):
    """All that comes until the other side closes."""
    with contextlib.suppress(ConnectionResetError):
        return await asyncio.wait_for(reader.read(), 20)
    return b""


async def app(scope, receive, send):
    """Answers with the length of the body, on /slow only after its connection has got its second request; or much."""
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size += len(message["body"])
        more = message["more_body"]
    if scope["path"] == "/slow":
        await asyncio.sleep(0.3)
    answers = {
        "/stream": StreamingResponse(itertools.repeat(b"a" * 65536, LARGE // 65536)),
        "/large": PlainTextResponse(b"a" * LARGE),
    }
    await answers.get(scope["path"], PlainTextResponse(f"{size} bytes"))(scope, receive, send)


def serving(test, **limits):
    """Run an async test beside a server with these limits."""
    given = {"header_timeout": LONG, "body_timeout": LONG, "idle_timeout": LONG, **limits}

    async def run():
        http = partial(Connection, limits=LimitsSection(**given))
        config = uvicorn.Config(app, port=0, http=http, ws="none", lifespan="off", log_config=None, access_log=False)
        server = uvicorn.Server(config)
        server.capture_signals = contextlib.nullcontext
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.001)
        served = Served(server.servers[0].sockets[0].getsockname()[1], server.server_state.connections)
        try:
            await test(served)
        finally:
            await served.close()
            server.should_exit = server.force_exit = True
            await serving

    asyncio.run(run())


SHORT = Seconds(0.1)
GET = b"GET / HTTP/1.1\r\nHost: x\r\n"


def test_headers_up_to_the_limit_pass_and_one_byte_more_gets_431():
    async def test(served):
        for extra, status in ((0, b"200"), (1, b"431")):
            name = b"X-A: "
            room = 20_000 - len(b"/") - len(b"Host: x\r\n") - len(b"Connection: close\r\n") - len(name + b"\r\n")
            head = GET + b"Connection: close\r\n" + name + b"a" * (room + extra) + b"\r\n\r\n"
            reply = await served.ask(head)
            assert reply.startswith(b"HTTP/1.1 " + status)
            assert status == b"200" or b"the limit is 20000 (server.limits.header_bytes)" in reply

    serving(test, header_bytes=20_000)


@pytest.mark.parametrize("start", [b"GET /", GET + b"X-A: ", GET + b"X-"])
def test_a_header_without_an_end_is_refused_once_it_is_too_large(start):
    async def test(served):
        reply = await served.ask(start, *([b"a" * 5000] * 40))
        assert reply == b"" or (reply.startswith(b"HTTP/1.1 431") and b"server.limits.header_bytes" in reply)

    serving(test, header_bytes=8000)


def test_too_many_headers_are_refused_with_the_limits_name():
    async def test(served):
        reply = await served.ask(GET + b"".join(b"X-%d: 1\r\n" % number for number in range(20)) + b"\r\n")
        assert reply.startswith(b"HTTP/1.1 431")
        assert b"the limit is 20 (server.limits.headers)" in reply

    serving(test, headers=20)


def test_trailers_count_as_headers():
    async def test(served):
        head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n"
        reply = await served.ask(head + b"X-A: 1\r\n" * 40 + b"\r\n")
        assert b"431" in reply[:20]

    serving(test, headers=20)


@pytest.mark.parametrize(
    ("sent", "limit"),
    [
        (b"G", "header_timeout"),
        (GET + b"X-A: 1\r\n", "header_timeout"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab", "body_timeout"),
    ],
)
def test_half_a_request_is_ended_by_its_timeout(sent, limit):
    async def test(served):
        reply = await served.ask(sent)
        assert reply.startswith(b"HTTP/1.1 408")
        assert f"the limit is 0.1s (server.limits.{limit})".encode() in reply

    serving(test, **{limit: SHORT})


@pytest.mark.parametrize("sent", [b"", b"\r\n", GET + b"\r\n", GET + b"\r\n\r\n"])
def test_a_connection_that_asks_nothing_more_is_closed(sent):
    async def test(served):
        reply = await served.ask(sent)
        assert reply.count(b"HTTP/1.1 200") == sent.count(b"GET")

    serving(test, header_timeout=SHORT, idle_timeout=SHORT)


def test_an_answer_may_take_longer_than_the_timeouts_of_its_request():
    async def test(served):
        slow = b"POST /slow HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nab"
        reply = await served.ask(slow + b"GET / HTTP/1.1\r\nHos", b"t: x\r\nConnection: close\r\n\r\n")
        assert reply.count(b"HTTP/1.1 200") == 2

    serving(test, header_timeout=SHORT, body_timeout=SHORT, idle_timeout=SHORT)


def test_pipelined_requests_are_each_counted_for_themselves():
    async def test(served):
        one = GET + b"X-A: " + b"a" * 900 + b"\r\n\r\n"
        reply = await served.ask(one * 30 + GET + b"Connection: close\r\n\r\n")
        assert reply.count(b"HTTP/1.1 200") == 31

    serving(test, header_bytes=1000, headers=3)


def test_a_large_body_is_no_header():
    async def test(served):
        head = b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 300000\r\n\r\n"
        assert b"300000 bytes" in await served.ask(head + b"a" * 300_000)

    serving(test, header_bytes=1000)


def test_a_new_connection_takes_the_place_of_the_one_that_waits_longest():
    async def test(served):
        waiting = [await served.open() for _ in range(3)]
        assert b"200" in await served.ask(GET + b"Connection: close\r\n\r\n")
        assert await whole(waiting[0][0]) == b""
        waiting[2][1].write(GET + b"Connection: close\r\n\r\n")
        assert b"200" in await whole(waiting[2][0])

    serving(test, connections=3)


def test_where_all_connections_are_in_use_a_new_one_is_told_so():
    async def test(served):
        busy = [await served.open() for _ in range(2)]
        for _, writer in busy:
            writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2\r\n\r\na")
            await writer.drain()
        reply = await refused_in_time(served)
        assert b"the limit is 2 (server.limits.connections)" in reply
        for reader, writer in busy:
            writer.write(b"b")
            assert b"2 bytes" in await whole(reader)

    serving(test, connections=2)


async def appeared(connections):
    while not any(one.cycle is not None and one.cycle.response_started for one in connections):
        await asyncio.sleep(0.001)


async def vanished(connections):
    for _ in range(4000):
        if not connections:
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it is still connected")


async def refused_in_time(served):
    """A refusal, as soon as the server has read what the others sent."""
    for _ in range(100):
        reader, writer = await served.open()
        reply = await whole(reader)
        if b"HTTP/1.1 503" in reply:
            return reply
        writer.close()
    raise AssertionError("nothing was refused")


@pytest.mark.parametrize("path", [b"/large", b"/stream"])
def test_a_client_that_reads_nothing_is_cut_off(path):
    async def test(served):
        _, writer = await served.open(limit=1000)
        writer.write(b"GET " + path + b" HTTP/1.1\r\nHost: x\r\n\r\n")
        await appeared(served.connections)
        await vanished(served.connections)
        writer.transport.abort()

    serving(test, send_timeout=SHORT)


def test_a_client_that_reads_late_gets_all():
    async def test(served):
        reader, writer = await served.open(limit=1000)
        writer.write(b"GET /large HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        await appeared(served.connections)
        assert len(await whole(reader)) > LARGE

    serving(test, send_timeout=Seconds(20))


def test_what_is_no_http_gets_an_answer_in_json():
    async def test(served):
        reply = await served.ask(b"\x16\x03\x01 hello\r\n\r\n")
        assert reply.startswith(b"HTTP/1.1 400")
        assert b'"code":"invalid_http"' in reply

    serving(test)
