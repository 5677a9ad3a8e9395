"""Put the endpoints together as one ASGI application. Knows routes; knows nothing of sockets, signals or processes."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.routing import Route

from anychip.server import info
from anychip.server.errors import HANDLERS
from anychip.server.http_counts import HttpCounts
from anychip.server.native import generate
from anychip.server.network import Network
from anychip.server.openai.chat import chat_completions
from anychip.server.openai.completions import completions
from anychip.server.service import Service
from anychip.server.settings import EngineAccess, PromptTemplate, ServerSettings, TextTokenizer

ROUTES = (
    Route("/v1/chat/completions", chat_completions, methods=["POST"]),
    Route("/v1/completions", completions, methods=["POST"]),
    Route("/generate", generate, methods=["POST"]),
    Route("/v1/models", info.models, methods=["GET"]),
    Route("/v1/models/{name:path}", info.model, methods=["GET"]),
    Route("/health", info.health, methods=["GET"]),
    Route("/ready", info.health, methods=["GET"]),
    Route("/metrics", info.metrics, methods=["GET"]),
    Route("/server_info", info.server_info, methods=["GET"]),
    Route("/tokenize", info.tokenize, methods=["POST"]),
    Route("/detokenize", info.detokenize, methods=["POST"]),
    Route("/flush_cache", info.flush_cache, methods=["POST"]),
)


def create_app(
    settings: ServerSettings,
    engine: EngineAccess,
    tokenizer: TextTokenizer,
    template: PromptTemplate | None = None,
    network: Network | None = None,
) -> Starlette:
    """The application; its Service is `app.state.service`."""
    service = Service(settings, engine, tokenizer, template)
    layers = (network or Network()).layers(HttpCounts(service, frozenset(route.path for route in ROUTES)))
    app = Starlette(routes=list(ROUTES), exception_handlers=dict(HANDLERS), middleware=layers)
    app.state.service = service
    return app


__all__ = ["ROUTES", "create_app"]
