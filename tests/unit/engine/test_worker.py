"""The loop between the socket and the core, in this process."""

import threading

import pytest
import zmq
from structlog.testing import capture_logs

from anychip.engine import messages
from anychip.engine.request import GenerateRequest, SamplingParams
from anychip.engine.worker import Worker, load_factory, refusal
from anychip_sdk.errors import DeviceLost, UsageError
from support.stub_core import StubCore


class Pair:
    """A worker over a core in a thread, and the other end of its socket."""

    def __init__(self, core):
        self.context = zmq.Context()
        self.ours, self.theirs = (self.context.socket(zmq.PAIR) for _ in range(2))
        self.ours.bind("inproc://worker")
        self.theirs.connect("inproc://worker")
        self.core = core
        self.error = None
        self.thread = threading.Thread(target=self._run)

    def _run(self):
        try:
            Worker(self.theirs).run(self.core)
        except Exception as error:
            self.error = error

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.send(messages.Shutdown())
        self.thread.join(10)
        self.context.destroy(linger=0)
        assert not self.thread.is_alive()

    def send(self, message):
        self.ours.send(messages.encode(message))

    def next(self):
        assert self.ours.poll(5000), "the worker is silent"
        return messages.decode_from_worker(self.ours.recv())


def request(prompt, name="a", **params):
    return GenerateRequest(name, list(prompt), SamplingParams(**params))


def test_a_request_is_accepted_before_its_first_event():
    with Pair(StubCore([[65], [66]])) as pair:
        pair.send(messages.Submit(request(b"hi")))
        assert pair.next() == messages.Accepted("a")
        events = [event for _ in range(3) for event in pair.next().events]
    assert [event.token_ids for event in events] == [[65], [66], []]
    assert events[-1].finish_reason == "stop"


@pytest.mark.parametrize(("token", "kind", "status"), [(999, "invalid", 400), (998, "internal", 500)])
def test_a_refused_request_leaves_the_worker_alive(token, kind, status):
    with Pair(StubCore()) as pair:
        pair.send(messages.Submit(request([token])))
        refused = pair.next()
        assert (refused.request_id, refused.kind, refused.status) == ("a", kind, status)
        pair.send(messages.Submit(request([1], "b")))
        assert pair.next() == messages.Accepted("b")
        pair.next()


def test_a_full_queue_says_when_to_come_back():
    with Pair(StubCore(max_queued=0)) as pair:
        pair.send(messages.Submit(request([1])))
        refused = pair.next()
    assert (refused.kind, refused.retry_after_s) == ("queue_full", 2)


def test_an_abort_is_handled_between_two_steps():
    core = StubCore([[65]], endless=True)
    with Pair(core) as pair:
        pair.send(messages.Submit(request([1])))
        pair.next()
        pair.send(messages.Abort("a"))
        while pair.next().events[0].finish_reason != "abort":
            pass
        pair.send(messages.AskStats(7))
        assert pair.next() == messages.Stats(7, core.stats())
    assert core.aborted == ["a"]


def test_a_completion_that_is_whole_is_computed_no_further_and_answered_by_nothing():
    core = StubCore([[65]], endless=True)
    with Pair(core) as pair:
        pair.send(messages.Submit(request([1], n=2)))
        pair.next()
        pair.next()
        pair.send(messages.Stop("a", 0))
        while {event.index for event in pair.next().events} != {1}:
            pass
        pair.send(messages.Stop("a", 1))
        pair.send(messages.AskStats(7))
        while isinstance(answer := pair.next(), messages.Events):
            pass
    assert answer.values["running"] == answer.values["aborted"] == 0
    assert core.stopped == [("a", 0), ("a", 1)]


def test_a_failing_step_fails_its_requests_and_the_next_ones_run():
    with Pair(StubCore([[65]], fail_steps=[1])) as pair:
        pair.send(messages.Submit(request([1])))
        pair.next()
        (failed,) = pair.next().events
        assert failed.finish_reason == "error"
        assert "step 1 fails" in failed.error
        pair.send(messages.Submit(request([1], "b")))
        assert pair.next() == messages.Accepted("b")
        assert pair.next().events[0].token_ids == [65]


def test_steps_that_keep_failing_end_the_worker():
    with Pair(StubCore([[65]], fail_steps=range(100))) as pair:
        for name in "abc":
            pair.send(messages.Submit(request([1], name)))
            pair.next()
            if name != "c":
                pair.next()
        pair.thread.join(5)
        assert isinstance(pair.error, ValueError)


def test_a_lost_device_fails_the_requests_and_ends_the_worker_at_once():
    core = StubCore([[65]])

    def lose():
        raise DeviceLost("a kernel failed; the last op queued was rms_norm")

    core.step = lose
    with Pair(core) as pair:
        pair.send(messages.Submit(request([1])))
        pair.next()
        (failed,) = pair.next().events
        assert failed.finish_reason == "error"
        assert failed.error == "a kernel failed; the last op queued was rms_norm"
        pair.thread.join(5)
        assert isinstance(pair.error, DeviceLost)


def test_the_cache_is_flushed_on_demand():
    with Pair(StubCore()) as pair:
        pair.send(messages.Flush(3))
        assert pair.next() == messages.Flushed(3, True)


@pytest.mark.parametrize("spec", ["", "module", "support.stub_core:absent", "support.stub_text:VOCAB"])
def test_a_factory_must_be_a_callable_of_a_module(spec):
    with pytest.raises(UsageError, match="core factory"):
        load_factory(spec)


def test_a_line_about_a_request_carries_its_id():
    with capture_logs() as logs:
        refusal("from-the-client/cmpl-1", ValueError("oh"))
    assert [line["request"] for line in logs] == ["from-the-client/cmpl-1"]
