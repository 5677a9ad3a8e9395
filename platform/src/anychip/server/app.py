"""Put the endpoints together as one ASGI application. Knows routes; knows nothing of sockets, signals or processes."""

from __future__ import annotations

from functools import cache

from starlette.applications import Starlette
from starlette.routing import Route

from anychip.server.endpoints import ENDPOINTS
from anychip.server.errors import HANDLERS
from anychip.server.http_counts import HttpCounts
from anychip.server.network import Network
from anychip.server.openapi import write_document
from anychip.server.service import Service
from anychip.server.settings import EngineAccess, PromptTemplate, ServerSettings, TextTokenizer
from anychip.server.unknown import naming_ignored
from anychip.text.thinking import NO_THINKING, TemplateThinking

ROUTES = tuple(Route(one.path, naming_ignored(one.handle), methods=[one.method]) for one in ENDPOINTS)


def create_app(
    settings: ServerSettings,
    engine: EngineAccess,
    tokenizer: TextTokenizer,
    template: PromptTemplate | None = None,
    thinking: TemplateThinking = NO_THINKING,
    network: Network | None = None,
) -> Starlette:
    """The application; its Service is `app.state.service`."""
    service = Service(settings, engine, tokenizer, template, thinking)
    layers = (network or Network()).layers(HttpCounts(service, frozenset(route.path for route in ROUTES)))
    app = Starlette(routes=list(ROUTES), exception_handlers=dict(HANDLERS), middleware=layers)
    app.state.service = service
    app.state.document = cache(lambda: _document(settings))
    return app


def _document(settings: ServerSettings) -> dict[str, object]:
    """Written when somebody asks for it first."""
    return write_document(ENDPOINTS, version=settings.version, is_lenient=settings.unknown_fields == "lenient")


__all__ = ["ROUTES", "create_app"]
