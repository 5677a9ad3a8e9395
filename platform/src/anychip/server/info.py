"""Everything that tells about the service and generates nothing: health, models, metrics, tokens, cache.

Knows no wire format of answers.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, ClassVar

from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import FailFast, Field
from starlette.requests import Request
from starlette.responses import Response

from anychip.engine.messages import Progress
from anychip.server.body_shape import Limited
from anychip.server.errors import json_response
from anychip.server.fields import Body
from anychip.server.openai.not_offered import IGNORED, OFF
from anychip.server.params import checked_ids
from anychip.server.record import current
from anychip.server.service import Service
from anychip_sdk.errors import EngineDead

STATS_PATIENCE_S = 1.0  #: a step may be running; `platform status` waits no longer than twice as long


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


async def health(request: Request) -> Response:
    """200 only while requests are taken; costs the engine nothing."""
    service = _service(request)
    if service.state == "ready":
        return json_response({"status": "ready"})
    return not_ready(service.state, service.engine.progress, service.engine.problem)


def not_ready(state: str, progress: Progress, problem: str = "") -> Response:
    """The answer while no requests are taken, with the reason where there is one and how far loading is."""
    reply: dict[str, object] = {"status": state}
    if problem:
        reply["reason"] = problem
    if state in {"loading", "restarting"}:
        reply["progress"] = {
            "stage": progress.stage,
            "done": progress.done,
            "total": progress.total,
            "detail": progress.detail,
        }
    return json_response(reply, 503)


async def models(request: Request) -> Response:
    service = _service(request)
    return json_response({"object": "list", "data": [_card(service, name) for name in service.names]})


async def model(request: Request) -> Response:
    service = _service(request)
    name = request.path_params["name"]
    service.check_model(name)
    return json_response(_card(service, name))


def _card(service: Service, name: str) -> dict[str, object]:
    return {
        "id": name,
        "object": "model",
        "created": service.settings.created_s,
        "owned_by": "anychip",
        "root": service.model.served_name,
        "max_model_len": service.model.context_length,
    }


async def metrics(request: Request) -> Response:
    service = _service(request)
    page = service.metrics.render(
        {
            **service.engine.last_stats(),  # a scrape never waits for the worker
            "ready": float(service.state == "ready"),
            "restarts": float(service.engine.restarts),
            "hangs": float(service.engine.hangs),
            "emulated": float(service.model.emulated),
            "startup_time_seconds": service.engine.load_s,
        }
    )
    return Response(page, headers={"Content-Type": CONTENT_TYPE_LATEST})


async def server_info(request: Request) -> Response:
    service = _service(request)
    settings, model = service.settings, service.model
    return json_response(
        {
            "version": settings.version,
            "model": model.served_name,
            "aliases": settings.aliases,
            "context_length": model.context_length,
            "thinking": model.thinking,
            "emulated": model.emulated,
            "state": service.state,
            "reason": service.engine.problem,
            "restarts": service.engine.restarts,
            "hangs": service.engine.hangs,
            "plan": model.plan,
            "stats": await _engine_stats(service),
            "time": time.time(),
        }
    )


async def _engine_stats(service: Service) -> dict[str, float]:
    """The engine's own numbers; the last that it told, with their age, where it doesn't answer soon."""
    try:
        return await service.engine.stats(STATS_PATIENCE_S)
    except EngineDead:
        return service.engine.last_stats()


class TokenizeBody(Body):
    """A text to be made tokens."""

    prompt: str
    model: str | None = Field(default=None, description="A name of the served model.")
    add_special_tokens: bool = Field(default=True, description="Put what begins a text in front, where there is one.")

    ignored: ClassVar[frozenset[str]] = IGNORED
    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {"return_token_strs": OFF}
    limited: ClassVar[Limited] = {"prompt": "tokenize_characters"}


async def tokenize(request: Request) -> Response:
    service = _service(request)
    body = await service.read(request, TokenizeBody)
    service.check_model(body.model)
    ids = await service.offload.run(
        len(body.prompt), lambda: service.tokenizer.encode(body.prompt, body.add_special_tokens)
    )
    return json_response({"tokens": ids, "count": len(ids), "max_model_len": service.model.context_length})


class DetokenizeBody(Body):
    """Tokens to be made a text."""

    tokens: Annotated[list[int], FailFast()]
    model: str | None = Field(default=None, description="A name of the served model.")
    skip_special_tokens: bool = Field(default=True, description="Special tokens don't appear in the text.")

    ignored: ClassVar[frozenset[str]] = IGNORED


async def detokenize(request: Request) -> Response:
    service = _service(request)
    body = await service.read(request, DetokenizeBody)
    service.check_model(body.model)
    rows = service.model.vocab_size

    def decoded() -> str:
        return service.tokenizer.decode(checked_ids(body.tokens, "tokens", rows), body.skip_special_tokens)

    text = await service.offload.run(len(body.tokens), decoded)
    return json_response({"text": text})


async def flush_cache(request: Request) -> Response:
    """Empty the prefix cache; refused while requests run, whose prefixes it holds."""
    if await _service(request).engine.flush_cache():
        return json_response({"flushed": True})
    current().fail("busy")
    message = "requests are running; the cache can be flushed when none is"
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": "busy"}
    return json_response({"flushed": False, "error": error}, 400)


__all__ = ["detokenize", "flush_cache", "health", "metrics", "model", "models", "not_ready", "server_info", "tokenize"]
