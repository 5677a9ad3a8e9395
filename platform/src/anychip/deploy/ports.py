"""Tell in time whether a port can be had, and who has it. Knows sockets; knows no service."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Collection
from typing import Any

import psutil

from anychip_sdk.errors import PortTaken, PreconditionFailed

POLL_S = 0.05


def require_free(host: str, port: int, except_for: Collection[int] = ()) -> int:
    """The port, after a trial; for port 0 one that is free now.

    Args:
        host: where to listen.
        port: the number.
        except_for: processes that give up the ports they listen on, each with what it has started.

    Raises:
        PortTaken: somebody listens there, with the holder's name where the system tells it.
        PreconditionFailed: the address is not this machine's, or the port is not for ordinary users.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        message = f"server.host '{host}' is not an address: {error.strerror}"
        raise PreconditionFailed(message, hint="127.0.0.1 for this machine alone, 0.0.0.0 for all") from error
    with socket.socket(family, kind, protocol) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(address)
            trial.listen(1)
        except OSError as error:
            if error.errno == errno.EADDRINUSE and _is_given_up(str(address[0]), port, except_for):
                return port
            raise _refused(host, port, error) from error
        return int(trial.getsockname()[1])


def wait_free(host: str, port: int, limit_s: float) -> None:
    """Wait for a port whose holder has ended; the system takes a moment to give it back. At most so long."""
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s:
        try:
            require_free(host, port)
        except PortTaken:
            time.sleep(POLL_S)
        else:
            return


def _is_given_up(address: str, port: int, by: Collection[int]) -> bool:
    """Whether only these processes, or what they started, listen where the address would.

    Where the system tells of no listener at all, the port counts as theirs: they do listen somewhere.
    """
    if not by:
        return False
    listeners = [one for one in _listeners(port) if _overlap(str(one.laddr.ip), address)]
    return all(one.pid is not None and not _family(one.pid).isdisjoint(by) for one in listeners)


def _overlap(one: str, other: str) -> bool:
    """Whether a socket on one address keeps another from listening on the other address."""
    everywhere = {"0.0.0.0", "::"}
    return one == other or bool(everywhere & {one, other})


def _family(pid: int) -> set[int]:
    """A process and those that it descends from."""
    try:
        return {pid, *(one.pid for one in psutil.Process(pid).parents())}
    except psutil.Error:
        return {pid}


def _listeners(port: int) -> list[Any]:  # psutil has no public name for the type
    try:
        connections = psutil.net_connections("tcp")
    except psutil.AccessDenied:
        return []
    return [one for one in connections if one.status == psutil.CONN_LISTEN and one.laddr and one.laddr.port == port]


def holder(port: int) -> str | None:
    """Who listens on a port, e.g. "python (pid 123)"; None where the system doesn't tell."""
    for one in _listeners(port):
        if one.pid is not None:
            try:
                return f"{psutil.Process(one.pid).name()} (pid {one.pid})"
            except psutil.NoSuchProcess:
                return None
    return None


def _refused(host: str, port: int, error: OSError) -> PreconditionFailed:
    if error.errno == errno.EADDRINUSE:
        who = holder(port)
        message = f"port {port} on {host} is taken" + (f" by {who}" if who else "")
        return PortTaken(message, hint=f"choose another one: --set server.port={port + 1 if port < 65535 else 8000}")
    if error.errno == errno.EACCES:
        message = f"port {port} on {host} needs more rights than this user has"
        return PreconditionFailed(message, hint="choose a port above 1023")
    message = f"cannot listen on {host} port {port}: {error.strerror}"
    return PreconditionFailed(message, hint="server.host must be an address of this machine")


__all__ = ["holder", "require_free", "wait_free"]
