"""Services' processes are found by their command lines, and nothing else is taken for one."""

import os
import subprocess
import sys
from contextlib import ExitStack

import psutil
import pytest

from anychip.deploy.running import FLAG, running_services
from anychip.deploy.supervisor import wait_gone

SLEEPS = "import time; time.sleep(600)"


@pytest.fixture
def run():
    """Starts a process with these arguments behind its code, in a session of its own unless told otherwise."""
    with ExitStack() as stack:

        def start(*arguments, leads=True):
            command = [sys.executable, "-c", SLEEPS, *map(str, arguments)]
            process = stack.enter_context(subprocess.Popen(command, start_new_session=leads))
            stack.callback(process.kill)
            return process

        yield start


def revision(home, name="svc", number=1):
    return home / "services" / name / "revisions" / f"{number}.json"


def test_a_process_is_found_by_the_revision_on_its_command_line(tmp_path, run):
    one, two = run(FLAG, revision(tmp_path)), run(FLAG, revision(tmp_path, "other", 12), "--stand-by")
    found = running_services(tmp_path)
    assert sorted(found) == ["other", "svc"]
    assert [(each.revision, each.id.pid) for each in (*found["svc"], *found["other"])] == [(1, one.pid), (12, two.pid)]


def test_the_one_that_was_started_first_comes_first(tmp_path, run):
    pids = [run(FLAG, revision(tmp_path, number=number)).pid for number in (2, 1)]
    assert [one.id.pid for one in running_services(tmp_path)["svc"]] == pids


def test_a_home_is_the_same_by_any_name(tmp_path, run):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    run(FLAG, revision(tmp_path / "link"))
    assert "svc" in running_services(tmp_path / "real")


def test_another_homes_services_are_not_this_ones(tmp_path, run):
    run(FLAG, revision(tmp_path / "a"))
    assert running_services(tmp_path / "b") == {}


@pytest.mark.parametrize(
    "arguments",
    [
        lambda home: [revision(home)],  # an editor
        lambda home: [FLAG, revision(home).with_name("1.recipe.json")],
        lambda home: [FLAG, home / "services" / "svc" / "1.json"],
        lambda home: [FLAG],
    ],
)
def test_other_command_lines_are_no_service(tmp_path, run, arguments):
    run(*arguments(tmp_path))
    assert running_services(tmp_path) == {}


def test_a_process_within_another_session_is_no_service(tmp_path, run):
    run(FLAG, revision(tmp_path), leads=False)
    assert running_services(tmp_path) == {}


def test_a_dead_one_that_nobody_waited_for_is_no_service(tmp_path, run):
    process = run(FLAG, revision(tmp_path))
    os.kill(process.pid, 9)
    wait_gone([psutil.Process(process.pid)], 10)
    assert running_services(tmp_path) == {}
