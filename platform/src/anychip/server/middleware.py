"""What happens around every request: the key is checked, it is counted, one line is logged.

Knows paths and statuses; never sees a body.
"""

from __future__ import annotations

import hmac
import time

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from anychip.server.errors import error_response
from anychip.server.service import Service
from anychip_sdk.errors import RequestInvalid

#: Asked every second by somebody: open to all and not logged.
PROBES = frozenset({"/health", "/ready", "/metrics"})

log = structlog.get_logger("anychip.access")


class Gate:
    """Wraps the application."""

    def __init__(self, app: ASGIApp, service: Service, paths: frozenset[str]) -> None:
        self._app = app
        self._service = service
        self._paths = paths
        key = service.settings.api_key
        self._key = None if key is None else key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path, method = scope["path"], scope["method"]
        started_s = time.monotonic()
        status = 499  # nothing was sent: the client left

        async def counted_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            if self._is_allowed(scope, path):
                await self._app(scope, receive, counted_send)
            else:
                refused = RequestInvalid("the API key is missing or wrong", code="invalid_api_key", status=401)
                await error_response(refused)(scope, receive, counted_send)
        finally:
            self._record(path, method, status, time.monotonic() - started_s)

    def _is_allowed(self, scope: Scope, path: str) -> bool:
        if self._key is None or path in PROBES:
            return True
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        kind, _, key = given.partition(b" ")
        return kind.lower() == b"bearer" and hmac.compare_digest(key.strip(), self._key)

    def _record(self, path: str, method: str, status: int, duration_s: float) -> None:
        # unknown paths share one label: their number is up to the clients
        endpoint = path if path in self._paths else "other"
        self._service.metrics.http_requests.labels(endpoint, method if method.isalpha() else "other").inc()
        self._service.metrics.http_responses.labels(endpoint, str(status)).inc()
        if path not in PROBES:
            log.info("request", method=method, path=path[:200], status=status, duration_s=round(duration_s, 4))


__all__ = ["PROBES", "Gate"]
