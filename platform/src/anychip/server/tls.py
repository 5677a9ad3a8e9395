"""The service's certificate, and a renewed one taken up while it serves. Knows PEM files; knows no recipe."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import NamedTuple


class Tls(NamedTuple):
    """PEM files."""

    certificate: Path
    key: Path


class Renewal:
    """Shows new connections what the files hold now.

    Args:
        tls: the files.
        context: what connections are made by; it has read the files once.
    """

    def __init__(self, tls: Tls, context: ssl.SSLContext) -> None:
        self._tls = tls
        self._context = context
        self._shown = self._content()

    def read(self) -> bool:
        """Take the files up; False where they are the same. Raises OSError where they can't be used."""
        content = self._content()
        if content == self._shown:
            return False
        # Tried on another context: one that fails half way is left with a certificate and no key.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*self._tls, password="")
        self._context.load_cert_chain(*self._tls, password="")
        self._shown = content
        return True

    def _content(self) -> tuple[bytes, bytes]:
        return self._tls.certificate.read_bytes(), self._tls.key.read_bytes()


__all__ = ["Renewal", "Tls"]
