"""Which web pages may talk to the service: CORS for those that are listed, nothing for all others.

Knows headers of browsers; knows no endpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from anychip.server.access import REQUEST_ID_HEADER
from anychip.server.errors import error_response
from anychip.server.unknown import HEADER as IGNORED_FIELDS_HEADER
from anychip_sdk.errors import RequestInvalid

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
EXPOSED = (REQUEST_ID_HEADER, "Retry-After", IGNORED_FIELDS_HEADER)
PREFLIGHT_S = 600


def cors(origins: Sequence[str]) -> Middleware:
    """What answers preflights, which carry no key, and lets pages of these origins read replies."""
    return Middleware(
        CORSMiddleware,
        allow_origins=tuple(origins),
        allow_methods=("GET", "POST"),
        allow_headers=("*",),
        expose_headers=EXPOSED,
        max_age=PREFLIGHT_S,
    )


class OriginCheck:
    """Refuses what a web page of another origin sends to a service without a key.

    A browser sends some requests across origins without asking first and only hides the reply; that is enough to change
    something. Where a key is wanted no such request gets far.
    """

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        self._app = app
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in SAFE_METHODS or not self._is_foreign(Headers(scope=scope)):
            await self._app(scope, receive, send)
            return
        message = "a web page of another origin sent this; to allow it, add its origin to server.cors in the recipe"
        await error_response(RequestInvalid(message, code="foreign_origin", status=403))(scope, receive, send)

    def _is_foreign(self, headers: Headers) -> bool:
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if "*" in self._origins or origin in self._origins:
            return False
        if site is not None:
            return site not in {"same-origin", "none"}
        return origin is not None and urlsplit(origin).netloc.lower() != headers.get("host", "").lower()


__all__ = ["EXPOSED", "OriginCheck", "cors"]
