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


def test_a_stop_string_ends_the_engines_work_too():
    asker = Asker(["a", "b", "c"], core=StubCore([[257], [258], [259]], endless=True))
    assert asker.complete(stop="b", max_tokens=50).json()["choices"][0]["text"] == "a"
    assert len(asker.core.aborted) == 1
    assert asker.service.metrics.aborted._value.get() == 0
    assert asker.core.steps <= 4
