"""Put the endpoints together as one ASGI application. Knows routes; knows nothing of sockets, signals or processes."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.routing import Route

from anychip.server import info
from anychip.server.errors import HANDLERS
from anychip.server.middleware import Gate
from anychip.server.native import generate
from anychip.server.openai.chat import chat_completions
from anychip.server.openai.completions import completions
from anychip.server.service import Service
from anychip.server.settings import EngineAccess, PromptTemplate, ServerSettings, TextTokenizer
from anychip.server.unknown import naming_ignored
from anychip.text.thinking import NO_THINKING, TemplateThinking

ROUTES = (
    Route("/v1/chat/completions", naming_ignored(chat_completions), methods=["POST"]),
    Route("/v1/completions", naming_ignored(completions), methods=["POST"]),
    Route("/generate", naming_ignored(generate), methods=["POST"]),
    Route("/v1/models", info.models, methods=["GET"]),
    Route("/v1/models/{name:path}", info.model, methods=["GET"]),
    Route("/health", info.health, methods=["GET"]),
    Route("/ready", info.health, methods=["GET"]),
    Route("/metrics", info.metrics, methods=["GET"]),
    Route("/server_info", info.server_info, methods=["GET"]),
    Route("/tokenize", naming_ignored(info.tokenize), methods=["POST"]),
    Route("/detokenize", naming_ignored(info.detokenize), methods=["POST"]),
    Route("/flush_cache", info.flush_cache, methods=["GET", "POST"]),
)


def create_app(
    settings: ServerSettings,
    engine: EngineAccess,
    tokenizer: TextTokenizer,
    template: PromptTemplate | None = None,
    thinking: TemplateThinking = NO_THINKING,
) -> Starlette:
    """The application; its Service is `app.state.service`."""
    service = Service(settings, engine, tokenizer, template, thinking)
    app = Starlette(routes=list(ROUTES), exception_handlers=dict(HANDLERS))
    app.state.service = service
    app.add_middleware(Gate, service=service, paths=frozenset(route.path for route in ROUTES))
    return app


__all__ = ["ROUTES", "create_app"]
