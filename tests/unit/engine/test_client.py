"""The engine client over a real worker process with a stub core."""

import asyncio
import os
import signal

import psutil
import pytest
from structlog.testing import capture_logs

from anychip.engine.client import EngineClient, WorkerFailed
from anychip.engine.request import GenerateRequest, SamplingParams
from anychip.engine.restarts import Backoff
from anychip_sdk.errors import AnychipError, EngineDead, QueueFull, RequestInvalid
from support.processes import child_env

LIMIT_S = 60


def with_client(test, **argument):
    """Run `test(client)` on a client whose worker is ready."""

    async def run():
        client = EngineClient("support.stub_core:make", argument, env=child_env(), backoff=Backoff(0.05))
        await client.start()
        try:
            await client.wait_ready()
            await test(client)
        finally:
            pid = client.worker_pid
            await client.close()
        assert pid is None or not psutil.pid_exists(pid)

    asyncio.run(asyncio.wait_for(run(), LIMIT_S))


def request(name="a", prompt=(1, 2, 3), **params):
    return GenerateRequest(name, list(prompt), SamplingParams(**params))


async def tokens_of(client, one):
    return [token async for event in client.generate(one) for token in event.token_ids]


async def to_end(generation):
    while await generation.next():
        pass


def test_requests_bring_their_tokens_side_by_side():
    async def test(client):
        prompts = [[number] * 5 for number in range(1, 9)]
        found = await asyncio.gather(*(tokens_of(client, request(str(p[0]), p)) for p in prompts))
        assert found == prompts
        assert client.state == "ready"
        assert client.progress.stage == "weights"
        assert client.load_s > 0

    with_client(test)


def test_errors_of_the_core_arrive_as_they_were_raised():
    async def test(client):
        with pytest.raises(RequestInvalid, match="taste") as refused:
            await tokens_of(client, request(prompt=[999]))
        assert refused.value.param == "prompt"
        with pytest.raises(AnychipError, match="unforeseen"):
            await tokens_of(client, request(prompt=[998]))
        assert await tokens_of(client, request(prompt=[5])) == [5]

    with_client(test)


def test_a_full_queue_refuses_before_anything_comes():
    async def test(client):
        with pytest.raises(QueueFull) as refused:
            await client.open([request()])
        assert refused.value.retry_after_s == 2

    with_client(test, max_queued=0)


def test_leaving_the_iterator_aborts_within_a_step():
    async def test(client):
        events = client.generate(request())
        await anext(events)
        await events.aclose()
        stats = await client.stats()
        assert (stats["running"], stats["aborted"]) == (0, 1)

    with_client(test, reply=[[65]], endless=True, step_s=0.001)


def test_a_choice_whose_text_is_whole_brings_nothing_more_and_its_sibling_goes_on():
    async def test(client):
        generation = await client.open([request(n=2)])
        await generation.next()
        generation.stop("a", 0)
        generation.stop("a", 0)
        indices = [event.index for _ in range(5) for event in await generation.next()]
        assert set(indices[1:]) == {1}
        generation.stop("a", 1)
        assert not generation.is_open
        stats = await client.stats()
        assert (stats["running"], stats["aborted"]) == (0, 0)
        assert await client.open([request()])  # its id is free again

    with_client(test, reply=[[65]], endless=True, step_s=0.001)


def test_the_cache_is_flushed_unless_busy():
    async def test(client):
        assert await client.flush_cache() is True
        generation = await client.open([request()])
        assert await client.flush_cache() is False
        generation.abort()
        assert await client.flush_cache() is True

    with_client(test, reply=[[65]], endless=True, step_s=0.001)


@pytest.mark.parametrize("busy", [False, True])
def test_a_killed_worker_fails_what_ran_and_comes_back(busy):
    async def test(client):
        generation = await client.open([request()]) if busy else None
        pid = client.worker_pid
        os.kill(pid, signal.SIGKILL)
        if generation is not None:
            with pytest.raises(EngineDead, match="signal 9"):
                await to_end(generation)
        while client.state == "ready":
            await asyncio.sleep(0.005)
        with pytest.raises(EngineDead):
            await client.open([request("b")])
        await client.wait_ready()
        assert client.restarts == 1
        assert client.worker_pid != pid
        assert await tokens_of(client, request("c", max_tokens=2)) == [65, 65]

    with_client(test, reply=[[65]], endless=True, step_s=0.001)


def test_what_is_known_of_the_model_is_what_the_newest_worker_said(tmp_path):
    models = [{"plan": {"fusions": ["mha"]}}, {"plan": {"fusions": []}, "warnings": ["mha: refused"]}]

    async def test(client):
        assert client.model.plan == {"fusions": ["mha"]}
        os.kill(client.worker_pid, signal.SIGKILL)
        while client.state == "ready":
            await asyncio.sleep(0.005)
        assert client.model.plan == {"fusions": ["mha"]}
        with capture_logs() as logs:
            await client.wait_ready()
        assert client.model.plan == {"fusions": []}
        assert "mha: refused" in [one["event"] for one in logs if one["log_level"] == "warning"]

    with_client(test, models=models, loads=str(tmp_path / "loads"))


def test_nothing_is_known_of_the_model_before_a_worker_is_ready():
    assert EngineClient("support.stub_core:make", {}).model is None


def test_a_call_to_a_worker_that_dies_fails():
    async def test(client):
        os.kill(client.worker_pid, signal.SIGSTOP)
        call = asyncio.create_task(client.stats())
        await asyncio.sleep(0)
        os.kill(client.worker_pid, signal.SIGKILL)
        with pytest.raises(EngineDead):
            await call

    with_client(test)


@pytest.mark.parametrize(
    ("argument", "message", "code"),
    [({"load_error": "no weights"}, "no weights", 4), ({"colour": "red"}, "TypeError", 1)],
)
def test_a_first_load_that_fails_is_fatal_with_the_workers_words(argument, message, code):
    async def run():
        client = EngineClient("support.stub_core:make", argument, env=child_env())
        await client.start()
        with pytest.raises(WorkerFailed, match=message) as failed:
            await client.wait_ready()
        assert failed.value.exit_code == code
        assert client.state == "dead"
        await client.close()

    asyncio.run(asyncio.wait_for(run(), LIMIT_S))


def test_a_worker_that_cannot_be_started_is_fatal(monkeypatch):
    async def run():
        monkeypatch.setattr("sys.executable", "/nowhere/python")
        client = EngineClient("support.stub_core:make", {})
        await client.start()
        with pytest.raises(AnychipError, match="no worker can be started"):
            await client.wait_ready()
        assert client.state == "dead"
        await client.close()

    asyncio.run(asyncio.wait_for(run(), LIMIT_S))


def test_a_long_temporary_path_is_no_obstacle(tmp_path, monkeypatch):
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))

    async def test(client):
        assert await tokens_of(client, request()) == [1, 2, 3]

    with_client(test)


def test_closing_while_loading_leaves_no_process():
    async def run():
        client = EngineClient("support.stub_core:make", {"load_s": 60}, env=child_env())
        await client.start()
        while client.progress.stage != "weights":
            await asyncio.sleep(0.01)
        pid = client.worker_pid
        with pytest.raises(EngineDead, match="loading"):
            await client.open([request()])
        await client.close(grace_s=0.2)
        assert not psutil.pid_exists(pid)

    asyncio.run(asyncio.wait_for(run(), LIMIT_S))


def test_the_socket_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    async def test(client):
        assert list(tmp_path.iterdir()) == []
        assert await tokens_of(client, request()) == [1, 2, 3]

    with_client(test)
    assert list(tmp_path.iterdir()) == []
