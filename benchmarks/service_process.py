"""Start a recipe's service as a process of its own, and end it. Knows processes and readiness; measures nothing."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from anychip.deploy.launch import plan_recipe
from anychip.deploy.state import Revision, Store
from anychip.recipe import load

POLL_S = 0.02
LIMIT_S = 300.0


class Service(NamedTuple):
    """A running one."""

    url: str
    server: psutil.Process
    worker: psutil.Process
    ready_s: float  #: from the start of the process
    cpu_s: float  #: user and system time of both processes until then


@contextlib.contextmanager
def running(recipe: str, folder: Path, sets: Sequence[str] = (), *, prefix: Sequence[str] = ()) -> Iterator[Service]:
    """The service of a recipe on a free port, ready; its log is in the folder.

    Args:
        prefix: what stands before the command, such as `chrt -r 10`.
    """
    port = free_port()
    loaded = load(recipe, sets=(f"server.port={port}", *sets))
    revision = Revision(
        name="benchmark",
        revision=1,
        digest="",
        recipe_path=recipe,
        working_folder=os.getcwd(),
        recipe=dict(loaded.resolved),
        environment=dict(plan_recipe(loaded).environment),
    )
    path = Store(folder).add_revision(revision)
    command = [*prefix, sys.executable, "-m", "anychip.deploy.service", "--revision", str(path)]
    with (folder / "service.log").open("ab") as log:
        started_s = time.perf_counter()
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log)
    try:
        url = f"http://127.0.0.1:{port}"
        ready_s = wait_ready(url, process, started_s, folder / "service.log")
        server = psutil.Process(process.pid)
        [worker] = [one for one in server.children() if "anychip.engine.worker" in one.cmdline()]
        yield Service(url, server, worker, ready_s, cpu_s(server) + cpu_s(worker))
    finally:
        process.terminate()
        process.wait(60)
        assert process.stdin is not None
        process.stdin.close()


def wait_ready(url: str, process: subprocess.Popen[bytes], started_s: float, log: Path) -> float:
    """Seconds from the start until /health says ready."""
    while process.poll() is None:
        now_s = time.perf_counter() - started_s
        if now_s > LIMIT_S:
            break
        with contextlib.suppress(OSError, urllib.error.HTTPError), urllib.request.urlopen(url + "/health") as reply:
            if reply.status == 200:
                return time.perf_counter() - started_s
        time.sleep(POLL_S)
    raise RuntimeError(f"the service did not become ready:\n{log.read_text()}")


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def model_of(url: str) -> str:
    with urllib.request.urlopen(url + "/v1/models") as reply:
        return str(json.load(reply)["data"][0]["id"])


__all__ = ["Service", "cpu_s", "free_port", "model_of", "running"]
