"""A service's process: `python -m anychip.deploy.service --revision FILE`. Serves the revision.

Knows how the parts are put together; knows no command and no state file.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from pathlib import Path

import msgspec
import structlog

from anychip.deploy import log_pipe
from anychip.deploy.launch import STAND_BY, Failure, failure_path, recipe_of
from anychip.deploy.leash import follow_leash
from anychip.deploy.network import network_of
from anychip.deploy.ports import wait_free
from anychip.deploy.running import FLAG
from anychip.deploy.state import read_revision, recipe_path
from anychip.engine.logs import configure_logs
from anychip.recipe.watchdog import watchdog_limits
from anychip.server.serve import serve
from anychip.server.settings import Served
from anychip_sdk.environment import worker_environment
from anychip_sdk.errors import AnychipError

CORE_FACTORY = "anychip.engine.core:from_recipe_file"
PORT_S = 10.0  #: how long the port of a predecessor that has ended may still be taken

log = structlog.get_logger("anychip.service")


def main(arguments: list[str] | None = None) -> int:
    """Serve until told to stop; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m anychip.deploy.service")
    parser.add_argument(FLAG, type=Path, required=True, metavar="FILE", help="what was applied")
    parser.add_argument(STAND_BY, action="store_true", help="wait for the order to take over from a predecessor")
    options = parser.parse_args(arguments)
    path: Path = options.revision
    log_pipe.keep(os.environ)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the worker inherits it: a closed terminal ends neither
    configure_logs()
    try:
        server = recipe_of(read_revision(path)).server  # what is wrong with it is found before a predecessor is ended
        follow_leash(stand_by=options.stand_by)
        if options.stand_by:
            wait_free(server.host, server.port, PORT_S)
        return run(path)
    except AnychipError as error:
        log.error("the service cannot be started", reason=str(error))
        _leave(path, Failure(error.message, error.hint, error.exit_code))
        return error.exit_code
    except Exception as error:
        log.exception("the service cannot be started")
        _leave(path, Failure(f"{type(error).__name__}: {error}"))
        return 1


def run(revision_path: Path) -> int:
    """Serve a revision; the worker plans and loads while this process reads the model's texts."""
    revision = read_revision(revision_path)
    recipe = recipe_of(revision)
    log.info("starting", revision=revision.revision, recipe=revision.recipe_path)

    def prepare() -> Served:
        from anychip.deploy.served import prepare  # brings torch, which the worker needn't wait for

        return prepare(recipe)

    address = recipe.server.host, recipe.server.port
    return serve(
        *address,
        (CORE_FACTORY, str(recipe_path(revision_path))),
        prepare,
        env=worker_environment(revision.environment),
        network=network_of(recipe.server),
        watchdog=watchdog_limits(recipe.server.watchdog),
        server_limits=recipe.server.limits,
    )


def _leave(revision_path: Path, failure: Failure) -> None:
    """Leave the reason where the command that started this process looks for it."""
    with contextlib.suppress(OSError):  # on a full disk the command tells the exit code and the log's end
        failure_path(revision_path).write_bytes(msgspec.json.encode(failure))


if __name__ == "__main__":
    sys.exit(main())

__all__ = ["main", "run"]
