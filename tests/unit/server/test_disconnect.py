"""A client that leaves frees what it held within a step."""

import asyncio

import pytest

from support.local_client import Asker, RawRequest
from support.stub_core import StubCore


class SlowCore(StubCore):
    """Brings nothing before `silent` steps: as if the prompt were still being computed."""

    silent = 0

    def step(self):
        if self.steps < self.silent:
            self.steps += 1
            return []
        return super().step()


async def until(condition):
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it did not come so far")


async def leave(asker, path, body, when):
    request = RawRequest(asker, path, body)
    async with request.running() as task:
        await until(lambda: asker.core.running)
        await until(lambda: when(asker.core, request))
        assert asker.core.aborted == []
        request.left.set()
        await until(lambda: asker.core.aborted)
        steps = asker.core.steps
        await until(task.done)
        assert asker.core.steps - steps <= 1
    assert asker.core.running == []
    assert len(asker.core.aborted) == 1


def endless(silent=0):
    core = SlowCore([[65]], endless=True)
    core.silent = silent
    return core


BODIES = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi", "max_tokens": 10_000},
    "/generate": {"text": "hi", "sampling_params": {"max_new_tokens": 10_000}},
}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("silent", [0, 10**6])
def test_leaving_aborts_while_waiting_and_while_running(path, stream, silent):
    asker = Asker(core=endless(silent), context_length=10**6)
    enough = 5 if silent else 3
    asyncio.run(leave(asker, path, {**BODIES[path], "stream": stream}, lambda core, _: core.steps >= enough))
    assert asker.service.metrics.aborted._value.get() == 1


def test_leaving_after_a_few_frames_aborts():
    asker = Asker(core=endless(), context_length=10**6)
    body = {**BODIES["/v1/completions"], "stream": True}
    asyncio.run(leave(asker, "/v1/completions", body, lambda _, request: request.got.qsize() > 4))


@pytest.mark.parametrize("stream", [False, True])
def test_a_normal_end_aborts_nothing(stream):
    asker = Asker(["a", "b"])
    asker.complete(stream=stream)
    assert asker.core.aborted == []


def finished(asker):
    """The counts of `finished_choices`, by reason."""
    (family,) = asker.service.metrics.finished.collect()
    return {one.labels["reason"]: one.value for one in family.samples if one.name.endswith("_total")}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 3])
def test_a_stop_string_ends_the_engines_work_and_counts_as_stopped(stream, n):
    asker = Asker(["a", "b", "c"], core=StubCore([[257], [258], [259]], endless=True))
    asker.complete(stop="b", max_tokens=50, n=n, stream=stream)
    assert len(asker.core.stopped) == n
    assert asker.core.aborted == []
    assert asker.service.metrics.aborted._value.get() == 0
    assert finished(asker) == {"stop": n}
    assert asker.core.steps <= 3


class Uneven(StubCore):
    """The second choice of a request says what the first does, three tokens later."""

    def add(self, request):
        super().add(request)
        for play in self.running:
            if play.index == 1:
                play.script = iter([[257]] * 3 + [[258]] * 40)


def test_a_choice_ended_by_its_stop_string_stops_computing_while_its_sibling_goes_on():
    asker = Asker(["a", "b"], core=Uneven([[257], [258]], endless=True))
    reply = asker.complete(stop="b", max_tokens=50, n=2).json()
    assert [choice["text"] for choice in reply["choices"]] == ["a", "aaa"]
    assert reply["usage"]["completion_tokens"] == 2 + 4 == asker.core.computed


def test_choices_cut_by_length_and_given_up_are_counted_by_their_reasons():
    asker = Asker(["a"], core=StubCore([[257]], endless=True, fail_steps=[9]))
    asker.complete(max_tokens=3, n=2)
    assert finished(asker) == {"length": 2}
    assert asker.complete(max_tokens=50).status_code == 500
    assert finished(asker) == {"length": 2, "error": 1}


def test_a_client_that_leaves_has_its_choices_counted_as_aborted():
    asker = Asker(core=endless(), context_length=10**6)
    body = {**BODIES["/v1/completions"], "n": 2}
    asyncio.run(leave(asker, "/v1/completions", body, lambda core, _: core.steps >= 3))
    assert finished(asker) == {"abort": 2}
