"""Tell the client which of its fields a lenient service ignored, and count them. Knows responses; knows no body."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

HEADER = "X-Ignored-Fields"
MAX_NAMES = 20  #: in the header; all are counted

Handle = Callable[[Request], Awaitable[Response]]


def naming_ignored(handle: Handle) -> Handle:
    """The same endpoint, whose replies name the fields that were ignored."""

    async def named(request: Request) -> Response:
        response = await handle(request)
        paths: list[str] = getattr(request.state, "unknown_fields", [])
        if paths:
            request.app.state.service.metrics.ignored_fields.labels(request.url.path).inc(len(paths))
            shown = [quote(path, safe=" []$@/") for path in paths[:MAX_NAMES]]
            response.headers[HEADER] = ", ".join(shown + ["..."] * (len(paths) > MAX_NAMES))
        return response

    return named


__all__ = ["HEADER", "Handle", "naming_ignored"]
