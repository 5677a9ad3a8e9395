"""Refuse requests for names that are not the service's, so that no web page reaches it by a name of its own.

Knows the Host header; knows no endpoint. A page whose name is made to resolve to this machine (DNS rebinding) counts as
of the same origin for the browser; its requests carry that name in Host.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from anychip.server.errors import error_response
from anychip_sdk.errors import RequestInvalid

ANY = "*"
_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[^\[\]:@/\s]+)(:[0-9]*)?")


def is_loopback(host: str) -> bool:
    """Whether this names nothing but this machine: localhost or an address such as 127.0.0.1 or ::1."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def hosts_served(bound: str, listed: Sequence[str]) -> frozenset[str] | None:
    """The names that requests may be for, beside loopback's own; None: any.

    Args:
        bound: the address that the service listens on.
        listed: `server.allowed_hosts`; "*" among them is any.
    """
    if ANY in listed or (not listed and not is_loopback(bound)):
        return None
    return frozenset(map(_plain, (*listed, bound)))


def host_of(header: str) -> str | None:
    """The name in a Host header, in lower case and without the port; None where it is none."""
    found = _HOST.fullmatch(header.strip())
    return None if found is None else _plain(found["name"])


def _plain(name: str) -> str:
    return name.lower().rstrip(".").strip("[]")


class HostCheck:
    """Wraps an application that is served under these names, and under loopback's, alone."""

    def __init__(self, app: ASGIApp, names: frozenset[str]) -> None:
        self._app = app
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = self._refusal(scope) if scope["type"] == "http" else None
        await (self._app if refused is None else error_response(refused))(scope, receive, send)

    def _refusal(self, scope: Scope) -> RequestInvalid | None:
        given = Headers(scope=scope).getlist("host")
        if not given and scope.get("http_version") == "1.0":
            return None  # no browser sends that
        if len(given) != 1:
            message = f"a request has one Host header, this one {len(given)}"
            return RequestInvalid(message, code="invalid_host", status=400)
        host = host_of(given[0])
        if host is not None and (host in self._names or is_loopback(host)):
            return None
        message = (
            f"host {given[0][:100]!r} is not served here; ask for localhost or 127.0.0.1, or have the name added to "
            "server.allowed_hosts in the recipe"
        )
        return RequestInvalid(message, code="unknown_host", status=421)


__all__ = ["ANY", "HostCheck", "host_of", "hosts_served", "is_loopback"]
