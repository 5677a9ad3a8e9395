"""Run the service as a process: take the port, start the engine, serve, drain. Knows signals; knows no endpoint."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any

import structlog
import uvicorn

from anychip.engine.client import EngineClient
from anychip.engine.logs import configure_logs
from anychip.server.app import create_app
from anychip.server.service import Service
from anychip.server.settings import Served
from anychip_sdk.errors import PortTaken, PreconditionFailed

#: After the drain limit, streams need a moment to send their error event.
LAST_WORDS_S = 1.0
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

    def __init__(self, server: _Server, service: Service, drain_s: float) -> None:
        self._server = server
        self._service = service
        self._drain_s = drain_s
        self.exit_code = 0

    def stop(self, exit_code: int) -> None:
        """First call: drain. Second: end at once."""
        if self._server.should_exit:
            log.warning("stopping at once")
            self._service.end_all()
            self._server.force_exit = True
            return
        self.exit_code = exit_code
        log.info("stopping", drain_s=self._drain_s)
        self._service.drain()
        self._server.should_exit = True
        asyncio.get_running_loop().call_later(self._drain_s, self._service.end_all)

    async def watch(self, client: EngineClient) -> None:
        """End the service when the engine could not load."""
        assert client.fatal is not None
        error = await client.fatal
        log.error("the engine could not be started", reason=str(error))
        self.stop(error.exit_code)


async def _serve(listener: socket.socket, client: EngineClient, prepare: Prepare) -> int:
    """Let the worker load, and meanwhile find out what is served; then serve until a signal."""
    await client.start()
    try:
        served = await _prepared(prepare)
        return served if isinstance(served, int) else await _run_server(served, listener, client)
    finally:
        await client.close(grace_s=0.5)


async def _prepared(prepare: Prepare) -> Served | int:
    """What is served, worked out in a thread; the exit code where a signal comes first."""
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[int] = loop.create_future()

    def stop(exit_code: int) -> None:
        if not stopped.done():
            stopped.set_result(exit_code)

    for number, exit_code in EXIT_CODES.items():
        loop.add_signal_handler(number, stop, exit_code)
    work = loop.run_in_executor(None, prepare)
    either: list[asyncio.Future[Any]] = [work, stopped]
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    return stopped.result() if stopped.done() else await work


async def _run_server(served: Served, listener: socket.socket, client: EngineClient) -> int:
    settings = served.settings
    app = create_app(settings, client, served.tokenizer, served.template)
    config = uvicorn.Config(
        app,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=65,
        timeout_graceful_shutdown=int(settings.drain_s + LAST_WORDS_S),
    )
    server = _Server(config)
    process = _Process(server, app.state.service, settings.drain_s)
    for number, exit_code in EXIT_CODES.items():
        asyncio.get_running_loop().add_signal_handler(number, process.stop, exit_code)
    watcher = asyncio.create_task(process.watch(client))
    try:
        await server.serve(sockets=[listener])
    finally:
        watcher.cancel()
    return process.exit_code


def serve(
    host: str,
    port: int,
    factory: tuple[str, object],
    prepare: Prepare,
    *,
    env: Mapping[str, str] | None = None,
    on_listening: Callable[[str, int], None] | None = None,
) -> int:
    """Serve until a signal, leaving no process, port or file behind.

    Returns the exit code: 0 after SIGTERM, 130 after Ctrl-C, the engine's own if it can't load.

    Args:
        port: 0 takes a free one.
        factory: import path and JSON argument of the core's factory, for the worker's process.
        prepare: says what is served; called in a thread while the worker loads already. What it raises ends both.
        env: the worker's environment; None is this process's own.
        on_listening: told host and port once the port is taken, while the model still loads.
    """
    configure_logs()
    with bind(host, port) as listener:
        if on_listening is not None:
            on_listening(*listener.getsockname()[:2])
        return _run(_serve(listener, EngineClient(*factory, env=env), prepare))


def _run(main: Coroutine[object, object, int]) -> int:
    if sys.platform == "win32":
        return asyncio.run(main)
    import uvloop

    return uvloop.run(main)


__all__ = ["bind", "serve"]
