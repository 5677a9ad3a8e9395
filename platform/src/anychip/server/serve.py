"""Run the service as a process: take the port, start the engine, serve, drain. Knows signals; knows no endpoint."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping

import structlog
import uvicorn

from anychip.engine.client import EngineClient
from anychip.engine.logs import configure_logs
from anychip.server.app import create_app
from anychip.server.service import Service
from anychip.server.settings import PromptTemplate, ServerSettings, TextTokenizer
from anychip_sdk.errors import PortTaken, PreconditionFailed

#: After the drain limit, streams need a moment to send their error event.
LAST_WORDS_S = 1.0
INTERRUPTED = 130

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


async def _serve(settings: ServerSettings, listener: socket.socket, client: EngineClient, service_of: ServiceOf) -> int:
    app, service = service_of(client)
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
    process = _Process(server, service, settings.drain_s)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, process.stop, INTERRUPTED)
    loop.add_signal_handler(signal.SIGTERM, process.stop, 0)
    await client.start()
    watcher = asyncio.create_task(process.watch(client))
    try:
        await server.serve(sockets=[listener])
    finally:
        watcher.cancel()
        await client.close(grace_s=0.5)
    return process.exit_code


ServiceOf = Callable[[EngineClient], "tuple[uvicorn._types.ASGIApplication, Service]"]


def serve(
    settings: ServerSettings,
    factory: tuple[str, object],
    tokenizer: TextTokenizer,
    template: PromptTemplate | None = None,
    *,
    env: Mapping[str, str] | None = None,
    on_listening: Callable[[str, int], None] | None = None,
) -> int:
    """Serve until a signal, leaving no process, port or file behind.

    Returns the exit code: 0 after SIGTERM, 130 after Ctrl-C, the engine's own if it can't load.

    Args:
        factory: import path and JSON argument of the core's factory, for the worker's process.
        env: the worker's environment; None is this process's own.
        on_listening: told host and port once the port is taken, while the model still loads.
    """

    def service_of(client: EngineClient) -> tuple[uvicorn._types.ASGIApplication, Service]:
        app = create_app(settings, client, tokenizer, template)
        return app, app.state.service  # type: ignore[return-value]

    configure_logs()
    with bind(settings.host, settings.port) as listener:
        host, port = listener.getsockname()[:2]
        if on_listening is not None:
            on_listening(host, port)
        return _run(_serve(settings, listener, EngineClient(*factory, env=env), service_of))


def _run(main: Coroutine[object, object, int]) -> int:
    if sys.platform == "win32":
        return asyncio.run(main)
    import uvloop

    return uvloop.run(main)


__all__ = ["bind", "serve"]
