"""Who may talk to the service, and the layers that see to it. Knows their order; knows no endpoint."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from starlette.middleware import Middleware
from starlette.types import ASGIApp

from anychip.server.access import AccessLog, Observer, Unforeseen
from anychip.server.hosts import HostCheck
from anychip.server.keys import KeyCheck, KeyRing
from anychip.server.origins import OriginCheck, cors
from anychip.server.tls import Renewal, Tls
from anychip.server.watch import Watched


@dataclass(frozen=True)
class Network:
    """What a recipe says of its service's clients.

    Attributes:
        hosts: the names that requests may be for, beside loopback's; None: any.
        origins: of web pages that may ask and read; "*": all.
        keys: one of them is wanted of everybody but probes; None: no key is.
        keys_path: the file that they are read from; None: it is no file.
        read_keys: reads them anew; returns False where they are the same. Raises AnychipError.
        tls: None: plain HTTP.
    """

    hosts: frozenset[str] | None = None
    origins: tuple[str, ...] = ()
    keys: KeyRing | None = None
    keys_path: Path | None = None
    read_keys: Callable[[], bool] = lambda: False
    tls: Tls | None = None

    def watched(self, context: ssl.SSLContext | None) -> list[Watched]:
        """The files to be read anew when they change; `context` is what the service shows its certificate by."""
        found = []
        if self.keys_path is not None:
            found.append(Watched("API keys", (self.keys_path,), self.read_keys))
        if self.tls is not None and context is not None:
            renewal = Renewal(self.tls, context)
            found.append(Watched("certificate", (self.tls.certificate, self.tls.key), renewal.read))
        return found

    def layers(self, observer: Observer | None = None) -> list[Middleware]:
        """What stands before an application, the outermost first."""
        found = [Middleware(AccessLog, observer=observer)]
        if self.hosts is not None:
            found.append(Middleware(HostCheck, names=self.hosts))
        if self.origins:
            found.append(cors(self.origins))
        if self.keys is None:
            found.append(Middleware(OriginCheck, origins=self.origins))
        else:
            found.append(Middleware(KeyCheck, keys=self.keys))
        return [*found, Middleware(Unforeseen)]

    def around(self, app: ASGIApp) -> ASGIApp:
        """The application behind these layers."""
        for layer in reversed(self.layers()):
            app = layer.cls(app, *layer.args, **layer.kwargs)
        return app


__all__ = ["Network"]
