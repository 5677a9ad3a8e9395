"""The pipe into the log: what real processes print, however they end, and a log's process that is killed."""

import json
import os
import signal
import sys

import psutil
import pytest

from anychip.deploy import log_pipe, supervisor
from support.processes import child_env, wait_until


@pytest.fixture
def log(tmp_path):
    return tmp_path / "service.log"


@pytest.fixture
def run(log):
    """Runs Python code as a service; what is left of it ends with the test."""
    started = []

    def start(code):
        started.append(supervisor.start([sys.executable, "-c", code], log, environ=child_env()))
        return started[-1]

    yield start
    for one in started:
        one.end(0)


def entries(log):
    return [json.loads(line) for line in log.read_text().splitlines()]


def pump_of(log):
    """The log's process."""
    named = (process for process in psutil.process_iter(["cmdline"]) if str(log) in (process.info["cmdline"] or ()))
    return next((process for process in named if process.status() != psutil.STATUS_ZOMBIE), None)


CRASHES = {
    "a traceback": ("raise ValueError('oh')", "ValueError: oh"),
    "a broken import": ("import nowhere_to_be_found", "nowhere_to_be_found"),
    "a syntax error": ("def", "SyntaxError"),
    "a crash of the interpreter": ("import ctypes, faulthandler as f; f.enable(); ctypes.string_at(0)", "Fatal Python"),
    "an abort": ("import os; os.write(2, b'C says goodbye'); os.abort()", "C says goodbye"),
    "a warning": ("import warnings; warnings.warn('beware')", "beware"),
    "a child": ("import subprocess as s; s.run(['sh', '-c', 'echo from a child; echo loud >&2'])", "from a child"),
}


@pytest.mark.parametrize("code", CRASHES.values(), ids=CRASHES)
def test_whatever_is_printed_is_a_json_object_a_line_when_the_process_has_ended(run, log, code):
    one = run(code[0])
    one.process.wait(60)
    assert log_pipe.wait_until_complete(log, 20)
    assert code[1] in "\n".join(str(entry["event"]) for entry in entries(log))


def test_nothing_of_a_killed_service_is_lost(run, log):
    run("import os, signal\nfor n in range(5000): print(n)\nos.kill(os.getpid(), signal.SIGKILL)").process.wait(60)
    assert log_pipe.wait_until_complete(log, 20)
    assert [entry["event"] for entry in entries(log)] == [str(n) for n in range(5000)]


def test_the_logs_process_ends_with_the_last_that_prints(run, log):
    one = run("import time; print('up', flush=True); time.sleep(600)")
    pump = wait_until(lambda: pump_of(log), 10)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        pump.send_signal(number)
    wait_until(lambda: log.exists() and "up" in log.read_text(), 10)
    assert not log_pipe.wait_until_complete(log, 0.05)
    one.end(5)
    assert pump_of(log) is None


KEPT = """
import os, sys, time
from anychip.deploy import log_pipe
log_pipe.RETRY_S = 0.05
log_pipe.keep(os.environ)
assert not any(name.startswith("ANYCHIP_LOG") for name in os.environ)
for n in range(10**6):
    print("line", n, flush=True)
    time.sleep(0.01)
"""


def test_a_killed_process_of_the_log_is_replaced_and_the_service_goes_on(run, log):
    one = run(KEPT)
    first = wait_until(lambda: log.exists() and log.read_text() and pump_of(log), 20)
    first.kill()
    wait_until(lambda: (found := pump_of(log)) and found.pid != first.pid, 20)
    seen = len(entries(log))
    wait_until(lambda: len(entries(log)) > seen + 20, 20)
    assert supervisor.is_alive(one.id)
    numbers = [int(entry["event"].split()[1]) for entry in entries(log)]
    assert numbers == sorted(set(numbers))


def test_a_child_of_the_service_does_not_inherit_the_pipes_end(run, log):
    code = "import subprocess, sys; subprocess.run(['sh', '-c', 'ls /proc/self/fd; env'], close_fds=False)"
    keep = "import os; from anychip.deploy import log_pipe; log_pipe.keep(os.environ);"
    run(keep + code).process.wait(60)
    assert log_pipe.wait_until_complete(log, 20)
    said = [entry["event"] for entry in entries(log)]
    assert "2" in said
    assert not [line for line in said if line.startswith("ANYCHIP_LOG")]
    assert len([line for line in said if line.isdigit()]) == 4  # 0, 1, 2 and ls's own


def test_a_log_that_cannot_be_opened_starts_nothing(tmp_path):
    (tmp_path / "service.log").mkdir()
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(IsADirectoryError):
        supervisor.start([sys.executable, "-c", ""], tmp_path / "service.log")
    assert set(os.listdir("/proc/self/fd")) == before


def test_there_is_nothing_to_wait_for_without_a_log(log):
    assert log_pipe.wait_until_complete(log)
