"""Logs: one JSON object a line in our processes; elsewhere on standard error, unless its owner chose otherwise."""

import json
import subprocess
import sys

import pytest
import structlog

from anychip.engine.logs import default_logs
from support.processes import child_env


@pytest.fixture(autouse=True)
def unconfigured():
    before = structlog.get_config() if structlog.is_configured() else None
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()
    if before is not None:
        structlog.configure(**before)


def test_logs_go_to_standard_error(capsys):
    default_logs()
    structlog.get_logger("test").info("loaded")
    out, err = capsys.readouterr()
    assert out == ""
    assert "loaded" in err


def test_what_the_owner_configured_stays(capsys):
    structlog.configure(processors=[structlog.processors.JSONRenderer()])
    default_logs()
    structlog.get_logger("test").info("loaded")
    assert capsys.readouterr().out == '{"event": "loaded"}\n'


PROCESS = """
import logging, threading, warnings
from anychip.engine.logs import configure_logs
import structlog
configure_logs()
configure_logs()
structlog.contextvars.bind_contextvars(request_id="r1")
structlog.get_logger().info("ours", number=float(1), odd=object())
logging.getLogger("uvicorn.error").warning("Invalid %s received", "HTTP request")
logging.getLogger("asyncio").error("caught", exc_info=ValueError("inside"))
warnings.warn("beware")
thread = threading.Thread(target=lambda: 1 / 0, name="t")
thread.start(); thread.join()
raise RuntimeError("the end")
"""


def test_everything_that_python_says_is_a_json_object_a_line():
    done = subprocess.run([sys.executable, "-c", PROCESS], check=False, capture_output=True, text=True, env=child_env())
    ours, http, caught, warning, thread, end = map(json.loads, done.stderr.splitlines())
    assert (ours["event"], ours["request_id"]) == ("ours", "r1")
    assert (http["event"], http["level"], http["logger"]) == (
        "Invalid HTTP request received",
        "warning",
        "uvicorn.error",
    )
    assert "ValueError: inside" in caught["exception"]
    assert "beware" in warning["event"]
    assert (thread["thread"], "ZeroDivisionError" in thread["exception"]) == ("t", True)
    assert "RuntimeError: the end" in end["exception"]
    assert done.returncode == 1


def test_a_log_that_nobody_reads_fails_nobody():
    code = (
        "import os; from anychip.engine.logs import configure_logs; import structlog; configure_logs()\n"
        "r, w = os.pipe(); os.dup2(w, 2); os.close(w); os.close(r)\n"
        "structlog.get_logger().info('lost'); print('went on')"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, env=child_env())
    assert (done.returncode, done.stdout) == (0, "went on\n")
