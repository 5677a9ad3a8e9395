"""Fixtures for tests that apply quick fake services in this process. Import them into a conftest or a module."""

import contextlib
import os
import subprocess
import sys

import psutil
import pytest

from anychip.deploy import services
from anychip.deploy.apply import ApplyOptions, apply
from anychip.deploy.state import Store
from support.deploying import Recorder, fake_launch

QUICK = ApplyOptions(timeout_s=60)


@pytest.fixture
def store(tmp_path):
    """A home; whatever runs in the end is ended."""
    found = Store(tmp_path / "home")
    yield found
    for name in found.names():
        services.down(found, name)
    for child in psutil.Process().children():  # nothing of a test waits for the fake services
        if child.status() == psutil.STATUS_ZOMBIE:
            child.wait()


@pytest.fixture
def run(store):
    """Applies a recipe; the n-th start of a process takes the n-th mode."""

    def apply_it(path, *modes, reporter=None, options=QUICK, **more):
        launch = fake_launch(*modes, **more)
        return apply(path, options, store=store, reporter=reporter or Recorder(), launch=launch)

    return apply_it


_HOLDS = """
import signal, sys, threading
from pathlib import Path
from anychip.deploy.state import Store

asked, enough = [], threading.Event()

def listen(*_):
    asked.append(1)
    if len(asked) == int(sys.argv[2]):
        enough.set()

if int(sys.argv[2]):
    signal.signal(signal.SIGUSR1, listen)
with Store(Path(sys.argv[1])).lock("svc"):
    print("held", flush=True)
    if int(sys.argv[2]):
        enough.wait()
    else:
        sys.stdin.read()
"""


@contextlib.contextmanager
def lock_held_elsewhere(store, asked=0):
    """Another process that holds the lock of `svc`, until it was asked so often, or its standard input ends."""
    command = [sys.executable, "-c", _HOLDS, str(store.home), str(asked)]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ) as other:
        assert other.stdout.readline() == b"held\n"
        yield other
