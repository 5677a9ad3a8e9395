"""What tests of services share: a home of their own, recipes, launches of the fake service. Knows no engine."""

import socket
import sys
from pathlib import Path

from anychip.deploy.launch import Launch, Planned
from anychip.deploy.running import FLAG

FAKE = Path(__file__).parent / "fake_service.py"


class Recorder:
    """Keeps what is reported."""

    def __init__(self):
        self.said = []
        self.stages = []

    def say(self, text):
        self.said.append(text)

    def progress(self, health):
        self.stages.append((health.stage, health.done, health.total))

    def done(self):
        return


def fake_launch(*modes, plan=None, emulated=False):
    """Launches the fake service; the n-th start takes the n-th mode, the last one all further starts."""
    started = []

    def command(revision):
        mode = modes[min(len(started), len(modes) - 1)] if modes else "well"
        started.append(mode)
        return [sys.executable, str(FAKE), mode, FLAG, str(revision)]

    return Launch(command=command, plan=plan or (lambda loaded: Planned("fake", "the plan", emulated)), poll_s=0.01)


def free_port():
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return trial.getsockname()[1]


def write_recipe(folder, *, name="svc", port=0, extra=""):
    path = folder / f"{name}.yaml"
    path.write_text(
        f"version: 1\nname: {name}\nmodel: {{source: ./tiny}}\nserver: {{port: {port}}}\n{extra}", encoding="utf-8"
    )
    return path
