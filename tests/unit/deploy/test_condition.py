"""What a process that lives and isn't ready is doing."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

from anychip.deploy.client import Health
from anychip.deploy.condition import condition_of
from support.processes import wait_until


@pytest.mark.parametrize(
    ("health", "may_load", "condition", "detail"),
    [
        (Health("loading", "verify"), False, "loading", "verify"),
        (Health("unreachable"), True, "loading", "unreachable"),
        (Health("unreachable"), False, "unhealthy", "unreachable"),
        (Health("dead", reason="signal 9"), False, "unhealthy", "dead: signal 9"),
        (Health("restarting", "load", reason="signal 9"), False, "unhealthy", "restarting: signal 9"),
        (Health("hung", reason="the engine hangs"), False, "hung", "the engine hangs"),
        (Health("stopping"), False, "unhealthy", "stopping"),
    ],
)
def test_what_health_says_is_told(health, may_load, condition, detail):
    assert condition_of(health, os.getpid(), may_load=may_load) == (condition, detail)


def test_a_process_that_lives_and_is_silent_is_not_called_loading():
    condition, detail = condition_of(Health("silent"), os.getpid(), may_load=True)
    assert condition == "unhealthy"
    assert "lives, but /health gave no answer for 2 s" in detail


@pytest.mark.parametrize("state", ["silent", "unreachable"])
def test_a_stopped_process_is_hung_with_what_to_do(state):
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED, what="the stop")
        condition, detail = condition_of(Health(state), process.pid, may_load=True)
        assert condition == "hung"
        assert f"kill -CONT {process.pid}" in detail
    finally:
        process.kill()
        process.communicate()
