"""Run the service as a process: take the port, start the engine, serve, drain. Knows signals; knows no endpoint."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping
from functools import partial
from typing import cast

import structlog
import uvicorn

from anychip.engine.client import EngineClient
from anychip.engine.garbage import keep_for_good
from anychip.engine.logs import configure_logs
from anychip.recipe.limits import LimitsSection
from anychip.recipe.watchdog import WatchdogLimits
from anychip.server.app import create_app
from anychip.server.connection import Connection
from anychip.server.drain import LAST_WORDS_S, Drain
from anychip.server.lobby import Lobby
from anychip.server.network import Network
from anychip.server.offload import give_memory_back, keep_no_large_blocks, share_interpreter
from anychip.server.settings import Served
from anychip.server.stall import tell_stalls
from anychip.server.watch import watch
from anychip_sdk.errors import PortTaken, PreconditionFailed

#: Files that the process has open beside its connections, amply.
OWN_FILES = 256
EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 0}

Prepare = Callable[[], Served]

log = structlog.get_logger("anychip.server")


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; raises PortTaken before anything costly is begun."""
    try:
        address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError as error:
        raise PreconditionFailed(f"server.host {host!r}: {error}") from None
    listener = socket.socket(address[0], socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address[4])
        listener.listen(2048)
    except OSError as error:
        listener.close()
        if error.errno in {errno.EADDRINUSE, errno.EACCES}:
            hint = "set server.port to a free one, or stop what uses it"
            raise PortTaken(f"{host}:{port}: {error.strerror}", hint=hint) from None
        raise PreconditionFailed(f"{host}:{port}: {error.strerror}") from None
    return listener


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: one Ctrl-C drains here, and the exit code is ours."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Process:
    """The running service and what stops it."""

    def __init__(self, server: _Server, client: EngineClient, lobby: Lobby, network: Network) -> None:
        self._server = server
        self._client = client
        self._lobby = lobby
        self._network = network
        self._drain = Drain(self._close, self._close_at_once)
        self.exit_code = 0

    def stop(self, exit_code: int) -> None:
        """First call: drain. Second: end at once."""
        if not self._drain.has_begun:
            self.exit_code = exit_code
        self._drain.stop()

    async def open(self, prepare: Prepare) -> None:
        """Prepare while the engine loads, serve once both are done, and end the service when there is no engine."""
        preparing = asyncio.get_running_loop().run_in_executor(None, prepare)
        try:
            served, _ = await asyncio.gather(preparing, self._client.wait_ready())
        except BaseException:
            self._close()
            raise
        app = create_app(
            served.settings, self._client, served.tokenizer, served.template, served.thinking, self._network
        )
        keep_for_good()
        give_memory_back()
        self._drain.begin_service(app.state.service, served.settings.drain_s)
        self._lobby.app = app
        assert self._client.fatal is not None
        error = await self._client.fatal
        log.error("there is no engine any more", reason=str(error))
        self.stop(error.exit_code)

    def _close(self) -> None:
        self._server.should_exit = True

    def _close_at_once(self) -> None:
        self._server.should_exit = self._server.force_exit = True


async def _serve(
    listener: socket.socket, client: EngineClient, prepare: Prepare, network: Network, limits: LimitsSection
) -> int:
    """Serve until a signal; the worker loads at once, beside everything else."""
    lobby = Lobby(client, network)
    config = uvicorn.Config(
        lobby,
        http=cast("type[asyncio.Protocol]", partial(Connection, limits=limits)),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=int(LAST_WORDS_S),
        ssl_certfile=None if network.tls is None else network.tls.certificate,
        ssl_keyfile=None if network.tls is None else network.tls.key,
    )
    config.load()
    server = _Server(config)
    process = _Process(server, client, lobby, network)
    for number, exit_code in EXIT_CODES.items():
        asyncio.get_running_loop().add_signal_handler(number, process.stop, exit_code)
    await client.start()
    opening = asyncio.create_task(process.open(prepare))
    watching = asyncio.create_task(watch(network.watched(config.ssl)))
    stalls = asyncio.create_task(tell_stalls())
    try:
        await server.serve(sockets=[listener])
        if opening.done():
            opening.result()  # raises what kept it from opening
    finally:
        opening.cancel()
        watching.cancel()
        stalls.cancel()
        await client.close(grace_s=0.5)
    return process.exit_code


def serve(
    host: str,
    port: int,
    factory: tuple[str, object],
    prepare: Prepare,
    *,
    env: Mapping[str, str] | None = None,
    server_limits: LimitsSection | None = None,
    watchdog: WatchdogLimits | None = None,
    on_listening: Callable[[str, int], None] | None = None,
    network: Network | None = None,
) -> int:
    """Serve until a signal, leaving no process, port or file behind.

    Returns the exit code: 0 after SIGTERM, 130 after Ctrl-C, the engine's own if it can't be started again.

    Raises:
        WorkerFailed: the engine can't load, in its own words and with its exit code.
        PortTaken: somebody else listens there.

    Args:
        port: 0 takes a free one.
        factory: import path and JSON argument of the core's factory, for the worker's process.
        prepare: finds out what the worker needn't tell; called in a thread while the worker loads already. What it
            raises ends both.
        env: the worker's environment; None is this process's own.
        network: whom it answers; None: everybody, without TLS.
        server_limits: of connections and headers; None: the defaults.
        watchdog: when the worker counts as hung, and what happens then; None: the defaults.
        on_listening: told host and port once the port is taken, while the model still loads.
    """
    configure_logs()
    share_interpreter()
    keep_no_large_blocks()
    limits = server_limits or LimitsSection()
    allow_files(limits.connections + OWN_FILES)
    with bind(host, port) as listener:
        if on_listening is not None:
            on_listening(*listener.getsockname()[:2])
        client = EngineClient(*factory, env=env, limits=watchdog)
        return _run(_serve(listener, client, prepare, network or Network(), limits))


def allow_files(count: int) -> None:
    """Let this process open so many files, connections among them, as far as the system lets it."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft not in {resource.RLIM_INFINITY} and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _run(main: Coroutine[object, object, int]) -> int:
    if sys.platform == "win32":
        return asyncio.run(main)
    import uvloop

    return uvloop.run(main)


__all__ = ["bind", "serve"]
