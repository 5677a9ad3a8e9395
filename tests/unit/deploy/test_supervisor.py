"""Processes: started on a leash, told from a reused pid, ended with their children."""

import json
import os
import signal
import sys
import time

import psutil
import pytest

from anychip.deploy import leash, supervisor
from anychip.deploy.process_id import ProcessId

SLEEPS = "import time; time.sleep(600)"
DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); {SLEEPS}"
PARENT = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {DEAF!r}]); {SLEEPS}"
LEASHED = f"from anychip.deploy.leash import follow_leash; follow_leash(5); print('leashed', flush=True); {SLEEPS}"


@pytest.fixture
def log(tmp_path):
    return tmp_path / "service.log"


@pytest.fixture
def run(log):
    """Starts Python code as a service and ends what is left of it."""
    started = []

    def start(code, said=None):
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        started.append(supervisor.start([sys.executable, "-c", code], log, environ=environ))
        eventually(lambda: said is None or (log.exists() and said in log.read_text()))
        return started[-1]

    yield start
    for one in started:
        one.process.returncode = None  # a detached one as well
        one.end(0)


def eventually(condition, limit_s=10.0):
    deadline = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
    return found


def test_a_started_process_lives_in_its_own_session_until_it_is_stopped(run):
    one = run(SLEEPS)
    assert supervisor.is_alive(one.id)
    assert os.getsid(one.id.pid) == one.id.pid
    assert supervisor.stop(one.id) is True
    assert not supervisor.is_alive(one.id)
    assert supervisor.stop(one.id) is False


def test_a_dead_child_that_nobody_waited_for_is_dead(run):
    one = run("pass")
    eventually(lambda: psutil.Process(one.id.pid).status() == psutil.STATUS_ZOMBIE)
    assert not supervisor.is_alive(one.id)


def test_a_reused_pid_is_neither_alive_nor_stopped():
    own = supervisor.identify(os.getpid())
    other = ProcessId(own.pid, own.started_at - 100)
    assert supervisor.is_alive(own)
    assert not supervisor.is_alive(other)
    assert supervisor.stop(other, 0) is False
    assert not supervisor.is_alive(None)


def test_one_that_ignores_sigterm_is_killed_with_its_children(run, log):
    one = run(PARENT, said="deaf")
    (child,) = psutil.Process(one.id.pid).children()
    assert supervisor.stop(one.id, 5)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
    deaf = run(DEAF, said="deaf")
    assert supervisor.stop(deaf.id, 0.05)
    assert not supervisor.is_alive(deaf.id)


def test_a_cut_leash_ends_the_service(run):
    one = run(LEASHED, said="leashed")
    one.leash.close()
    assert one.process.wait(10) == -signal.SIGTERM


def test_a_detached_service_outlives_the_leash(run):
    one = run(LEASHED + "\n", said="leashed")
    one.say(leash.DETACH)
    one.let_go()
    with pytest.raises(psutil.TimeoutExpired):
        psutil.Process(one.id.pid).wait(0.3)


def test_detaching_a_dead_process_is_no_error(run):
    one = run("pass")
    one.process.wait()
    one.say(leash.DETACH)
    one.let_go()


def test_output_is_appended_to_a_private_log(run, log):
    for word in ("one", "two"):
        one = run(f"print('{word}')")
        one.process.wait()
        one.exit_code()
    assert [json.loads(line)["event"] for line in log.read_text().splitlines()] == ["one", "two"]
    assert log.stat().st_mode & 0o777 == 0o600
