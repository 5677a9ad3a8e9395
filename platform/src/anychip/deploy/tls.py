"""Check a service's certificate, and trust it on this machine. Knows PEM files; knows no service."""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path

from anychip.recipe.schema import TlsSection

#: OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which ssl doesn't name: a command must reach a service whatever the date is.
_NO_CHECK_TIME = 0x200000


def problems_of(tls: TlsSection | None) -> tuple[str, ...]:
    """Everything that keeps a service from showing this certificate, each with its key; nothing where all is well."""
    if tls is None:
        return ()
    problems = [
        *_unreadable("server.tls.certificate", tls.certificate),
        *_unreadable("server.tls.key", tls.key),
    ]
    return tuple(problems or _misfits(tls) or _expired(tls.certificate))


def expiry_of(certificate: str) -> datetime.datetime:
    """When the certificate ends. Raises ValueError where the file holds none, OSError where it can't be read."""
    from cryptography import x509

    return x509.load_pem_x509_certificate(Path(certificate).read_bytes()).not_valid_after_utc


def trust(tls: TlsSection | None) -> ssl.SSLContext | None:
    """A context that trusts just this certificate, whatever its name and date; None where there is none to trust.

    The service is asked at an address of this machine, which its certificate rarely names.
    """
    if tls is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
    try:
        context.load_verify_locations(tls.certificate)
    except OSError:  # the file is gone or broken: nothing is trusted, so nothing is reached
        return context
    return context


def _unreadable(key: str, path: str) -> list[str]:
    try:
        Path(path).read_bytes()
    except OSError as error:
        return [f"{key}: the file {path} cannot be read: {error.strerror}"]
    return []


def _misfits(tls: TlsSection) -> list[str]:
    try:
        expiry_of(tls.certificate)
    except ValueError:
        return [f"server.tls.certificate: the file {tls.certificate} holds no certificate in PEM form"]
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tls.certificate, tls.key, _no_password)
    except _Encrypted:
        return [f"server.tls.key: the key in {tls.key} is encrypted; expected one that is not"]
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            return [f"server.tls.key: the key in {tls.key} is not that of the certificate in {tls.certificate}"]
        return [f"server.tls.key: the file {tls.key} holds no private key in PEM form ({error.reason})"]
    return []


def _expired(certificate: str) -> list[str]:
    end = expiry_of(certificate)
    if end > datetime.datetime.now(datetime.timezone.utc):
        return []
    return [f"server.tls.certificate: the certificate in {certificate} ended on {end:%Y-%m-%d}"]


class _Encrypted(Exception):
    pass


def _no_password() -> str:
    raise _Encrypted


__all__ = ["expiry_of", "problems_of", "trust"]
