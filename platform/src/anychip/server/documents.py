"""GET /openapi.json and GET /docs. Knows where the document is kept; writes none of it."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from anychip.server.docs_page import page_of
from anychip.server.errors import json_response

#: The page needs nothing from anywhere, so it may load nothing.
PAGE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


async def openapi(request: Request) -> Response:
    return json_response(request.app.state.document())


async def page(request: Request) -> Response:
    headers = {"Content-Security-Policy": PAGE_POLICY, "X-Content-Type-Options": "nosniff"}
    return HTMLResponse(page_of(request.app.state.document()), headers=headers)


__all__ = ["PAGE_POLICY", "openapi", "page"]
