"""When a connection's time for reading begins and ends, by a transport and a clock of the test's own."""

import asyncio

import pytest
import uvicorn
from uvicorn.server import ServerState

from anychip.recipe.limits import LimitsSection
from anychip.recipe.quantities import Seconds
from anychip.server.connection import Connection

SEND_TIMEOUT_S = 7.0
MARK = 64 * 1024  #: of a transport's buffer, unless it is told another


class Timer:
    def __init__(self, delay_s, call, arguments):
        self.delay_s = delay_s
        self.run = lambda: call(*arguments)
        self.is_pending = True

    def cancel(self):
        self.is_pending = False


class Loop(asyncio.AbstractEventLoop):
    def __init__(self):
        self.timers = []

    def call_later(self, delay, callback, *args, context=None):
        self.timers.append(Timer(delay, callback, args))
        return self.timers[-1]


class Transport(asyncio.Transport):
    def __init__(self):
        super().__init__()
        self.unread = 0
        self.protocol = None
        self.high, self.is_paused, self.closing, self.is_aborted = MARK, False, False, False

    def set_write_buffer_limits(self, high=None, low=None):
        self.high = MARK if high is None else high
        self.hold(self.unread)

    def get_write_buffer_size(self):
        return self.unread

    def hold(self, unread):
        """Let so much be unread, and tell the protocol as transports do."""
        self.unread = unread
        if unread > self.high and not self.is_paused:
            self.is_paused = True
            self.protocol.pause_writing()
        elif unread <= self.high // 4 and self.is_paused:
            self.is_paused = False
            self.protocol.resume_writing()

    def write(self, data):
        self.hold(self.unread + len(data))

    def is_closing(self):
        return self.closing

    def close(self):
        self.closing = True

    def abort(self):
        self.is_aborted = True

    def resume_reading(self):
        pass

    def pause_reading(self):
        pass


@pytest.fixture
def loop():
    return Loop()


@pytest.fixture
def transport():
    return Transport()


@pytest.fixture
def connection(loop, transport):
    limits = LimitsSection(send_timeout=Seconds(SEND_TIMEOUT_S))
    config = uvicorn.Config(lambda: None, lifespan="off", ws="none", log_config=None)
    config.load()
    made = Connection(limits=limits, config=config, server_state=ServerState(), app_state={}, _loop=loop)
    transport.protocol = made
    made.connection_made(transport)
    return made


def running(loop):
    """The timers for reading that run."""
    return [one for one in loop.timers if one.is_pending and one.delay_s == SEND_TIMEOUT_S]


def test_time_runs_while_more_is_unread_than_the_transport_wants_to_hold(connection, loop, transport):
    transport.hold(MARK)
    assert not running(loop)
    transport.hold(MARK + 1)
    (timer,) = running(loop)
    transport.hold(0)
    assert not running(loop)
    transport.hold(MARK + 1)
    (timer,) = running(loop)
    timer.run()
    assert transport.is_aborted


@pytest.mark.parametrize("unread", [1, MARK, MARK + 1])
def test_after_an_answer_time_runs_until_all_is_read_and_then_no_more(connection, loop, transport, unread):
    transport.hold(unread)
    connection.on_response_complete()
    assert len(running(loop)) == 1
    transport.hold(1)
    assert len(running(loop)) == 1
    transport.hold(0)
    assert not running(loop)
    transport.hold(MARK)  # of a later answer
    assert not running(loop)


@pytest.mark.parametrize("unread", [1, MARK, MARK + 1])
def test_a_closing_connection_has_time_until_its_end_however_little_is_unread(connection, loop, transport, unread):
    transport.hold(unread)
    transport.close()
    connection.on_response_complete()
    assert len(running(loop)) == 1
    transport.hold(1)
    assert len(running(loop)) == 1
    connection.connection_lost(None)
    assert not running(loop)


def test_a_refusal_that_nobody_reads_ends_too(connection, loop, transport):
    connection.send_400_response("no HTTP")
    assert transport.closing
    assert len(running(loop)) == 1


def test_an_answer_that_is_read_starts_no_time(connection, loop):
    connection.on_response_complete()
    assert not running(loop)
