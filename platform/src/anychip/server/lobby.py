"""What answers before the engine is ready: how far it is, and nothing else. Knows no model."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from anychip.server.errors import error_response
from anychip.server.info import not_ready
from anychip.server.network import Network
from anychip.server.settings import EngineAccess
from anychip_sdk.errors import EngineDead


class Lobby:
    """An application that hands everything on to `app` once that is set."""

    def __init__(self, engine: EngineAccess, network: Network | None = None) -> None:
        self._engine = engine
        self._waiting_room = (network or Network()).around(self._answer)
        self.app: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (self.app or self._waiting_room)(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in {"/health", "/ready"}:
            state = self._engine.state  # of an engine that is ready, the texts aren't read yet
            reply = not_ready("loading" if state == "ready" else state, self._engine.progress, self._engine.problem)
        else:
            reply = error_response(EngineDead("the model is still loading"))
        await reply(scope, receive, send)


__all__ = ["Lobby"]
