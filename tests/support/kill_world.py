"""A home in which one service is applied, replaced, used and ended, while any of its processes is killed.

Knows processes and gates; knows no expectation.
"""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import httpx
import psutil

from anychip.deploy import services
from anychip.deploy.apply import ApplyOptions, apply
from anychip.deploy.running import running_services
from anychip.deploy.state import Store
from anychip.deploy.status import status_of
from anychip_sdk.errors import UsageError
from support import gated_service
from support.deploying import Recorder, free_port, write_recipe
from support.gates import Gates
from support.processes import workers
from support.terminals import Terminal
from support.waiting import until

SETTLE_S = 200.0  #: on a very busy machine; on a quiet one a second or two


class World:
    """One home with one recipe in two versions.

    Args:
        folder: an empty one, with a short path.
    """

    def __init__(self, folder):
        self.folder = folder
        self.port = free_port()
        self.store = Store(folder / "home")
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        (folder / "said").touch()
        (folder / "gates").mkdir()
        self.gates = Gates(folder / "gates")
        self.first = write_recipe(folder, port=self.port)
        (folder / "new").mkdir()
        self.second = write_recipe(folder / "new", port=self.port, extra="scheduler: {policy: fcfs}")
        self.uses_terminals = False
        self.terminal = None  #: of the last command
        self._open = contextlib.ExitStack()
        self._commands = []

    def up(self):
        """Revision 1, running."""
        launch = gated_service.gated_launch(self.gates.folder)
        apply(self.first, ApplyOptions(timeout_s=SETTLE_S), store=self.store, reporter=Recorder(), launch=launch)
        return self.server(1)

    def command(self, *arguments):
        """The command line as a process, on a terminal of its own where the world uses terminals."""
        line = [sys.executable, gated_service.__file__, "command", str(self.gates.folder), *map(str, arguments)]
        if self.uses_terminals:
            self.terminal = Terminal(line, dict(os.environ))
            process = self.terminal.process
        else:
            with (self.folder / "said").open("ab") as said:
                process = subprocess.Popen(line, stdout=said, stderr=said)
        self._commands.append(process)
        return process

    def said(self):
        """What commands have printed."""
        return (self.folder / "said").read_text()

    def wait_said(self, text):
        until(lambda: text in self.said(), SETTLE_S)

    def server(self, revision):
        def found():
            return [one for one in running_services(self.store.home).get("svc", ()) if one.revision == revision]

        until(found, SETTLE_S)
        return psutil.Process(found()[-1].id.pid)

    def worker(self, server):
        until(lambda: workers(server), SETTLE_S)
        return workers(server)[0]

    def stream(self):
        """Open a stream that never ends by itself; returns when its first token has come."""
        body = {"prompt": "hi", "max_tokens": 3900, "ignore_eos": True, "stream": True}
        url = f"http://127.0.0.1:{self.port}/v1/completions"
        first = threading.Event()

        def read():
            with (
                contextlib.suppress(httpx.HTTPError),
                httpx.Client(trust_env=False, timeout=60) as client,
                client.stream("POST", url, json=body) as answer,
            ):
                for line in answer.iter_lines():
                    if line:
                        first.set()

        thread = threading.Thread(target=read)
        thread.start()
        self._open.callback(thread.join)
        assert first.wait(SETTLE_S)

    def is_draining(self):
        return '"event": "stopping"' in self.store.files("svc").log.read_text()

    def wait_commands(self):
        """Until the last command has ended by itself."""
        for command in self._commands:
            command.wait(SETTLE_S)

    def ending(self, command):
        """The exit code of a command that goes on."""
        return command.wait(SETTLE_S)

    def status(self):
        """Condition, revision and pid as `platform status` tells them; None where there is no service."""
        try:
            return status_of(self.store, "svc")
        except UsageError:
            return None

    def health(self):
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}/health", trust_env=False, timeout=5).json()["status"]
        except httpx.HTTPError:
            return "nobody"

    def is_whole(self, revision, but):
        """Whether a revision is ready, with a worker that isn't the process that was killed."""
        pids = [one.pid for one in workers(self.server(revision))]
        return self.health() == "ready" and bool(pids) and but not in pids

    def is_port_free(self):
        with socket.socket() as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind(("127.0.0.1", self.port))
            except OSError:
                return False
            return True

    def processes(self):
        """All living processes of this world but those of the test."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                is_ours = str(self.gates.folder) in " ".join(process.cmdline())
                if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def orphans(self):
        """Processes that belong to no service that runs."""
        kept = set()
        for one in running_services(self.store.home).get("svc", ()):
            with contextlib.suppress(psutil.Error):
                server = psutil.Process(one.id.pid)
                kept |= {server, *server.children(recursive=True)}
        kept |= {psutil.Process(one.pid) for one in self._commands if one.poll() is None and "--foreground" in one.args}
        return [one for one in self.processes() if one not in kept]

    def left_files(self):
        return [one.name for one in self.temporary.iterdir()]

    def close(self):
        self.gates.open_all()
        services.down(self.store, "svc")
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
        for command in self._commands:
            command.wait()
        self._open.close()
        for child in psutil.Process().children():
            if child.status() == psutil.STATUS_ZOMBIE:
                child.wait()


@contextlib.contextmanager
def world_of_its_own(monkeypatch):
    """A world in a folder with a short path, whose processes find it by their variables."""
    with tempfile.TemporaryDirectory(prefix="k-", dir="/tmp") as name:
        folder = Path(name)
        monkeypatch.setenv("ANYCHIP_HOME", str(folder / "home"))
        monkeypatch.setenv("TMPDIR", str(folder / "tmp"))
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        found = World(folder)
        try:
            yield found
        finally:
            found.close()
