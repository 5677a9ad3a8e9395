"""Before it is known what is served, health tells how far loading is and everything else is refused for now."""

import asyncio

import httpx
import pytest

from anychip.engine.messages import Progress
from anychip.server.lobby import Lobby


class Loading:
    state = "loading"
    problem = ""
    progress = Progress("load", 3, 10, "a tensor")


def ask(lobby, path):
    async def get():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(lobby), base_url="http://here") as client:
            return await client.get(path)

    return asyncio.run(get())


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_health_tells_how_far_loading_is(path):
    reply = ask(Lobby(Loading()), path)
    assert reply.status_code == 503
    progress = {"stage": "load", "done": 3, "total": 10, "detail": "a tensor"}
    assert reply.json() == {"status": "loading", "progress": progress}


@pytest.mark.parametrize(("state", "told"), [("ready", "loading"), ("hung", "hung"), ("dead", "dead")])
def test_health_tells_of_an_engine_that_will_not_get_ready(state, told):
    engine = Loading()
    engine.state, engine.problem = state, "why"
    reply = ask(Lobby(engine), "/health")
    assert (reply.status_code, reply.json()["status"], reply.json()["reason"]) == (503, told, "why")


def test_other_paths_are_refused_for_now():
    reply = ask(Lobby(Loading()), "/v1/models")
    assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")


def test_everything_goes_to_the_app_once_it_is_set():
    lobby = Lobby(Loading())

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    lobby.app = app
    assert ask(lobby, "/health").status_code == 204
