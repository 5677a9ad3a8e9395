"""What tests of real processes share: the environment of children, waiting with an end, the stub service."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import psutil

from anychip.deploy.state import recipe_path, write_recipe

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
SOURCES = (ROOT / "sdk/src", ROOT / "platform/src", TESTS)


def child_env(**more):
    """This environment, with the sources on the path and temporary files in a place of their own."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, SOURCES)), **more}


def wait_until(condition, limit_s=30.0, what="it"):
    """The condition's first true value."""
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError(f"{what} did not happen within {limit_s} s")


class ServiceProcess:
    """A service as a process, with a folder of its own for temporary files and the log.

    Args:
        command: starts it; its standard input stays open.
        port: where it listens; None: it prints the port on its first line.
    """

    def __init__(self, command, port=None):
        self.folder = tempfile.TemporaryDirectory(prefix="t-", dir="/tmp")
        self.log = Path(self.folder.name) / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=child_env(TMPDIR=self.folder.name),
                text=True,
            )
        line = port or self.process.stdout.readline()
        if not line:
            said = self.log.read_text()
            self._end()
            raise AssertionError(f"the service did not start: {said}")
        self.url = f"http://127.0.0.1:{int(line)}"
        self.client = httpx.Client(base_url=self.url, timeout=30, trust_env=False)

    def health(self):
        try:
            return self.client.get("/health").json()["status"]
        except httpx.TransportError:
            return "unreachable"

    def wait_for(self, status="ready", limit_s=30.0):
        wait_until(lambda: self.health() == status or self.process.poll(), limit_s, f"health {status}")
        assert self.process.poll() is None, self.log.read_text()
        return self

    def worker(self):
        """The worker's process."""
        return wait_until(lambda: workers(psutil.Process(self.process.pid)), what="a worker")[0]

    def complete(self, **fields):
        return self.client.post("/v1/completions", json={"prompt": "hi", **fields})

    @contextlib.contextmanager
    def streaming(self, **fields):
        """An open stream, whose first frame has come; gives the lines that follow."""
        body = {"prompt": "hi", "max_tokens": 3000, "stream": True, **fields}
        with self.client.stream("POST", "/v1/completions", json=body) as reply:
            lines = (line for line in reply.iter_lines() if line)
            next(lines)
            yield lines

    def left_files(self):
        return sorted(path.name for path in Path(self.folder.name).iterdir() if path != self.log)

    def close(self):
        self.client.close()
        self._end()

    def _end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        self.process.stdin.close()
        self.process.stdout.close()
        self.folder.cleanup()


@contextlib.contextmanager
def stub_service(**options):
    """`support/serve_stub.py`."""
    service = ServiceProcess([sys.executable, str(TESTS / "support/serve_stub.py"), json.dumps(options)])
    try:
        yield service
    finally:
        service.close()


def workers(server):
    """The workers among a server's children, beside which others do smaller things."""
    return [one for one in server.children() if "anychip.engine.worker" in one.cmdline()]


@contextlib.contextmanager
def served(folder, recipe, limit_s):
    """A real service of a recipe, its revision written to a folder as `apply` writes it."""
    revision = {
        "name": recipe["name"],
        "revision": 1,
        "digest": "none",
        "recipe_path": f"{recipe['name']}.yaml",
        "working_folder": str(folder),
        "recipe": recipe,
        "schema_version": 1,
    }
    path = folder / "revision.json"
    path.write_text(json.dumps(revision))
    write_recipe(recipe_path(path), recipe)
    command = [sys.executable, "-m", "anychip.deploy.service", "--revision", str(path)]
    service = ServiceProcess(command, recipe["server"]["port"])
    try:
        yield service.wait_for("ready", limit_s)
    finally:
        service.close()
