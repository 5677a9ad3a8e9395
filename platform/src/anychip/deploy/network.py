"""Whom a recipe's service answers: checked before it starts, told by plan, handed to the server. Knows no HTTP."""

from __future__ import annotations

import socket
import time
from pathlib import Path

from anychip.deploy.client import ServiceClient, endpoint
from anychip.deploy.secrets import first_key, read_keys
from anychip.deploy.tls import expiry_of, problems_of, trust
from anychip.recipe.schema import ServerSection
from anychip.server.hosts import hosts_served
from anychip.server.keys import KeyRing
from anychip.server.network import Network
from anychip.server.tls import Tls
from anychip_sdk.errors import PreconditionFailed

RELOAD_S = 5.0  #: a few times as long as a service takes to see that a file has changed
POLL_S = 0.1


def missing(server: ServerSection) -> tuple[str, ...]:
    """What the section refers to and isn't there, or is wrong: keys and certificate."""
    found = problems_of(server.tls)
    try:
        read_keys(server.api_key)
    except PreconditionFailed as error:
        return (error.message, *found)
    return found


def require(server: ServerSection) -> None:
    """Raises PreconditionFailed with all that is missing."""
    if found := missing(server):
        raise PreconditionFailed("\n".join(found), hint="mend that, or remove the key from the recipe")


def network_of(server: ServerSection) -> Network:
    """What the server needs to know. Raises PreconditionFailed where the keys can't be read."""
    ring = None if server.api_key is None else KeyRing(read_keys(server.api_key))
    file = None if server.api_key is None else server.api_key.file
    return Network(
        hosts=_hosts(server),
        origins=server.cors,
        keys=ring,
        keys_path=None if file is None else Path(file),
        read_keys=lambda: ring is not None and ring.replace(read_keys(server.api_key)),
        tls=None if server.tls is None else Tls(Path(server.tls.certificate), Path(server.tls.key)),
    )


def client_of(server: ServerSection, *, with_key: bool = True) -> ServiceClient:
    """A connection from this machine to the service.

    Raises:
        PreconditionFailed: the keys can't be read; not without a key.
    """
    key = first_key(server.api_key) if with_key else None
    return ServiceClient(server.host, server.port, key, trust(server.tls))


def takes_keys(client: ServiceClient, server: ServerSection) -> bool:
    """Whether the running service goes by the keys that the recipe refers to now.

    A changed file is read by the service itself within a moment, which is waited for; a variable is not.
    """
    ref = server.api_key
    deadline_s = time.monotonic() + (RELOAD_S if ref is not None and ref.file is not None else 0.0)
    left = [key.secret for key in read_keys(ref)]
    while left := [secret for secret in left if not client.takes(secret)]:
        if time.monotonic() >= deadline_s:
            return False
        time.sleep(POLL_S)
    return True


def url_of(server: ServerSection) -> str:
    """Where this machine reaches the service."""
    return endpoint(server.host, server.port, is_tls=server.tls is not None)


def as_json(server: ServerSection) -> dict[str, object]:
    """What plan tells of it; keys by name."""
    hosts = _hosts(server)
    return {
        "host": server.host,
        "port": server.port,
        "tls": None if server.tls is None else {"certificate": server.tls.certificate, "until": _until(server)},
        "hosts": "any" if hosts is None else sorted({"localhost", "127.0.0.1", "::1", *hosts}),
        "origins": list(server.cors),
        "keys": None if server.api_key is None else [key.name for key in read_keys(server.api_key)],
    }


def as_text(server: ServerSection) -> str:
    said = as_json(server)
    keys, hosts, origins = said["keys"], said["hosts"], server.cors
    tls = "plain HTTP" if server.tls is None else f"TLS, certificate until {_until(server)}"
    lines = (
        f"  listens  {server.host}:{server.port}, {tls}",
        f"  hosts    {', '.join(hosts) if isinstance(hosts, list) else 'any'}",
        f"  origins  {', '.join(origins) or 'none: no web page of another origin may use it'}",
        f"  keys     {', '.join(keys) if isinstance(keys, list) else 'none: open to all who reach it'}",
    )
    return "\n".join(("network", *lines))


def _hosts(server: ServerSection) -> frozenset[str] | None:
    """The names that requests may be for; a host that is a name counts as the address that it stands for, too."""
    try:
        address = str(socket.getaddrinfo(server.host, server.port, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:  # told when the port is tried
        address = server.host
    names = hosts_served(address, server.allowed_hosts)
    return None if names is None else names | {server.host.lower()}


def _until(server: ServerSection) -> str:
    assert server.tls is not None
    return f"{expiry_of(server.tls.certificate):%Y-%m-%d}"


__all__ = ["as_json", "as_text", "client_of", "missing", "network_of", "require", "takes_keys", "url_of"]
