"""When requests are sent: streams of a closed loop, and arrivals by a Poisson process."""

import asyncio
import statistics

import pytest

from anychip.bench.load import arrivals, closed_loop, poisson
from anychip.bench.prompts import Prompt
from anychip.bench.record import Record

PROMPTS = [Prompt((index,), 1) for index in range(10)]


class Clock:
    """Seconds that pass only where something waits for them."""

    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


class Sender:
    """Notes who is sent when, and how many run at once."""

    def __init__(self, clock):
        self.clock, self.sent, self.running, self.most = clock, [], 0, 0

    async def __call__(self, prompt, origin_s, scheduled_s):
        self.running += 1
        self.most = max(self.most, self.running)
        self.sent.append(prompt.ids[0])
        at_s = self.clock() - origin_s
        for _ in range(3):
            await asyncio.sleep(0)
        self.running -= 1
        return Record(scheduled_s=at_s if scheduled_s is None else scheduled_s, sent_s=at_s, event_s=(at_s,))


def test_a_closed_loop_keeps_its_streams_busy_and_sends_each_prompt_once():
    sender, done = Sender(Clock()), []
    records = asyncio.run(closed_loop(PROMPTS, 3, sender, sender.clock, lambda: done.append(1)))
    assert sender.most == 3
    assert sorted(sender.sent) == list(range(10))
    assert len(records) == len(done) == 10


def test_more_streams_than_prompts_are_no_harm():
    sender = Sender(Clock())
    assert len(asyncio.run(closed_loop(PROMPTS, 99, sender, sender.clock, lambda: None))) == 10
    assert sender.most == 10


def test_arrivals_are_seeded_ascending_and_as_frequent_as_asked_for():
    due_s = arrivals(4000, 2.0, "seed")
    assert due_s == arrivals(4000, 2.0, "seed") != arrivals(4000, 2.0, "other")
    assert due_s == sorted(due_s)
    gaps = [later - earlier for earlier, later in zip([0.0, *due_s], due_s, strict=False)]
    assert statistics.fmean(gaps) == pytest.approx(0.5, rel=0.05)
    assert statistics.pstdev(gaps) == pytest.approx(0.5, rel=0.1)  # exponential: as wide as its mean


def test_open_arrivals_do_not_wait_for_answers():
    sender = Sender(Clock())
    records = asyncio.run(poisson(PROMPTS, [0.0] * 10, sender, sender.clock, lambda: None))
    assert sender.most == 10
    assert [record.scheduled_s for record in records] == [0.0] * 10


def test_a_late_client_does_not_make_a_request_due_later():
    clock = Clock()
    sender = Sender(clock)

    async def send(prompt, origin_s, scheduled_s):
        clock.now_s += 2
        return await sender(prompt, origin_s, scheduled_s)

    (record,) = asyncio.run(poisson(PROMPTS[:1], [0.0], send, clock, lambda: None))
    assert (record.scheduled_s, record.sent_s) == (0.0, 2.0)
    assert record.ttft_s == 2.0


def test_when_one_stream_fails_none_goes_on():
    sender = Sender(Clock())

    async def send(prompt, origin_s, scheduled_s):
        if prompt.ids[0] == 2:
            raise ZeroDivisionError
        return await sender(prompt, origin_s, scheduled_s)

    with pytest.raises(ZeroDivisionError):
        asyncio.run(closed_loop(PROMPTS, 3, send, sender.clock, lambda: None))
    assert len(sender.sent) < 9
