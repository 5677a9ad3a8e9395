"""Apply with real processes of a quick fake service: what is started, kept, undone and told."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import httpx
import psutil
import pytest

from anychip.deploy import services, supervisor
from anychip.deploy.apply import ApplyOptions, apply
from anychip.deploy.launch import Planned
from anychip.deploy.state import Store, read_revision
from anychip.deploy.status import status_of
from anychip_sdk.errors import NotReady, PortTaken, PreconditionFailed, RecipeInvalid, StateLocked
from support.deploying import Recorder, fake_launch, free_port, write_recipe
from support.stores import store

__all__ = ["store"]

QUICK = ApplyOptions(timeout_s=20)


@pytest.fixture
def reporter():
    return Recorder()


def run(path, store, reporter, *modes, options=QUICK, **more):
    return apply(path, options, store=store, reporter=reporter, launch=fake_launch(*modes, **more))


def living(store, name="svc"):
    state = store.read(name)
    return state is not None and supervisor.is_alive(state.process)


def is_taken(port):
    with socket.socket() as trial:
        return trial.connect_ex(("127.0.0.1", port)) == 0


def test_a_revision_holds_the_variables_that_the_backend_names(tmp_path, store, reporter):
    run(write_recipe(tmp_path), store, reporter, plan=lambda _: Planned("fake", "the plan", environment={"HUGE": "1"}))
    assert read_revision(store.files("svc").revision(1)).environment == {"HUGE": "1"}


def test_apply_brings_a_service_up_and_leaves_it_running(tmp_path, store, reporter):
    port = free_port()
    applied = run(write_recipe(tmp_path, port=port), store, reporter)
    assert (applied.action, applied.url) == ("started", f"http://127.0.0.1:{port}")
    assert reporter.said == ["the plan", "starting revision 1 of 'svc'"]
    assert store.read("svc") == applied.state
    assert (applied.state.status, applied.state.model, applied.state.revision) == ("running", "tiny", 1)
    assert httpx.get(f"{applied.url}/health", trust_env=False).status_code == 200
    assert "fake service, revision 1" in applied.log_path.read_text()


def test_the_curl_line_works_in_a_shell(tmp_path, store, reporter):
    applied = run(write_recipe(tmp_path), store, reporter)
    done = subprocess.run(["sh", "-c", f"{applied.curl} -s --noproxy '*'"], capture_output=True, check=True)
    assert b"What is the capital of France?" in done.stdout


def test_an_unchanged_recipe_changes_nothing(tmp_path, store, reporter):
    path = write_recipe(tmp_path)
    first = run(path, store, reporter)
    path.write_text(path.read_text() + "\n# a comment\n")
    second = run(path, store, reporter)
    assert second.action == "unchanged"
    assert second.state == first.state


def test_a_changed_recipe_replaces_the_service_on_its_port(tmp_path, store, reporter):
    port = free_port()
    first = run(write_recipe(tmp_path, port=port), store, reporter)
    second = run(write_recipe(tmp_path, port=port, extra="scheduler: {policy: fcfs}"), store, reporter)
    assert (second.action, second.state.revision, second.state.port) == ("replaced", 2, port)
    assert not supervisor.is_alive(first.state.process)
    assert reporter.said[-2:] == ["stopping revision 1 of 'svc'", "starting revision 2 of 'svc'"]


def test_a_new_revision_that_fails_gives_way_to_the_old_one(tmp_path, store, reporter):
    port = free_port()
    run(write_recipe(tmp_path, port=port), store, reporter)
    with pytest.raises(NotReady) as caught:
        run(write_recipe(tmp_path, port=port, extra="scheduler: {policy: fcfs}"), store, reporter, "crash", "well")
    lines = caught.value.message.splitlines()
    assert lines[0] == "revision 2: the service ended while starting, with exit code 7"
    assert "  | the chip is on fire" in lines
    assert lines[-1] == f"revision 1 was brought back and serves http://127.0.0.1:{port}"
    assert caught.value.exit_code == 5
    state = store.read("svc")
    assert (state.revision, state.status) == (1, "running")
    assert httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False).status_code == 200
    assert run(write_recipe(tmp_path, port=port), store, reporter).action == "unchanged"


def test_if_the_old_one_fails_too_both_are_told_and_nothing_runs(tmp_path, store, reporter):
    run(write_recipe(tmp_path), store, reporter)
    with pytest.raises(NotReady, match=r"revision 1 could not be brought back either: .* exit code 7"):
        run(write_recipe(tmp_path, extra="scheduler: {policy: fcfs}"), store, reporter, "failure", "crash")
    assert status_of(store, "svc").condition == "failed"


def test_a_new_plan_that_fails_leaves_the_old_service_alone(tmp_path, store, reporter):
    def refuse(loaded):
        raise PreconditionFailed("no such chip")

    first = run(write_recipe(tmp_path), store, reporter)
    with pytest.raises(PreconditionFailed, match="no such chip"):
        run(write_recipe(tmp_path, extra="scheduler: {policy: fcfs}"), store, reporter, plan=refuse)
    assert store.read("svc") == first.state
    assert living(store)


def test_a_taken_port_is_told_before_the_plan_is_made(tmp_path, store, reporter):
    def never(loaded):
        raise AssertionError

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        before = time.monotonic()
        with pytest.raises(PortTaken, match=rf"port {port} on 127\.0\.0\.1 is taken by .*\(pid {os.getpid()}\)"):
            run(write_recipe(tmp_path, port=port), store, reporter, plan=never)
    assert time.monotonic() - before < 2
    assert store.names() == ()


def test_a_port_taken_by_another_service_names_that(tmp_path, store, reporter):
    port = free_port()
    run(write_recipe(tmp_path, port=port), store, reporter)
    with pytest.raises(PortTaken) as caught:
        run(write_recipe(tmp_path, name="other", port=port), store, reporter)
    assert caught.value.message == f"port {port} on 127.0.0.1 is taken by service 'svc'"
    assert caught.value.hint.startswith("platform down svc")


def test_a_running_service_can_listen_on_all_addresses_of_its_port_and_on_one_again(tmp_path, store, reporter):
    path = write_recipe(tmp_path, port=free_port())
    for host in ("127.0.0.1", "0.0.0.0", "localhost"):
        options = ApplyOptions(timeout_s=20, sets=(f"server.host={host}",))
        assert run(path, store, reporter, options=options).state.host == host
    assert run(path, store, reporter).action == "replaced"


def test_a_port_can_be_changed_and_changed_back(tmp_path, store, reporter):
    first, second = free_port(), free_port()
    for port in (first, second, first):
        assert run(write_recipe(tmp_path, port=port), store, reporter).state.port == port
    assert not is_taken(second)


def test_a_service_that_dies_while_starting_is_told_at_once_with_its_log(tmp_path, store, reporter):
    before = time.monotonic()
    with pytest.raises(NotReady) as caught:
        run(write_recipe(tmp_path), store, reporter, "crash", options=ApplyOptions(timeout_s=300))
    assert time.monotonic() - before < 10
    assert "the service ended while starting, with exit code 7" in caught.value.message
    assert "the chip is on fire" in caught.value.message


def test_a_service_that_says_why_it_failed_is_quoted(tmp_path, store, reporter):
    with pytest.raises(NotReady) as caught:
        run(write_recipe(tmp_path), store, reporter, "failure")
    assert str(caught.value) == "the service ended while starting: the pool does not fit\n  hint: take less"


def test_one_that_is_not_ready_in_time_is_taken_down(tmp_path, store, reporter):
    port = free_port()
    with pytest.raises(NotReady, match=r"not ready after 1 s \(last seen: weights\)"):
        run(write_recipe(tmp_path, port=port), store, reporter, "slow", options=ApplyOptions(timeout_s=1))
    assert ("weights", 3, 10) in reporter.stages
    assert status_of(store, "svc").condition == "failed"
    assert not is_taken(port)


def test_a_service_that_generates_nothing_is_taken_down(tmp_path, store, reporter):
    with pytest.raises(NotReady, match=r"the smoke request to .* brought no token"):
        run(write_recipe(tmp_path), store, reporter, "mute")
    assert not living(store)


def test_a_dead_service_is_started_anew(tmp_path, store, reporter):
    path = write_recipe(tmp_path)
    first = run(path, store, reporter)
    os.kill(first.state.process.pid, signal.SIGKILL)
    reap_until(lambda: not living(store))
    assert status_of(store, "svc").condition == "dead"
    second = run(path, store, reporter)
    assert (second.action, second.state.revision) == ("started", 2)


def test_a_broken_recipe_touches_nothing(tmp_path, store, reporter):
    path = write_recipe(tmp_path, extra="schedular: {}")
    with pytest.raises(RecipeInvalid):
        run(path, store, reporter)
    assert not store.home.exists()


def test_a_missing_secret_is_told_before_anything_is_started(tmp_path, store, reporter, monkeypatch):
    monkeypatch.delenv("SVC_KEY", raising=False)
    path = write_recipe(tmp_path)
    path.write_text(path.read_text().replace("port: 0", "port: 0, api_key: {env: SVC_KEY}"))
    with pytest.raises(PreconditionFailed, match=r"server\.api_key: the environment variable SVC_KEY is not set"):
        run(path, store, reporter)
    monkeypatch.setenv("SVC_KEY", "hush-hush")
    applied = run(path, store, reporter)
    assert '-H "Authorization: Bearer $SVC_KEY"' in applied.curl
    assert not any("hush-hush" in file.read_text() for file in store.home.rglob("*") if file.is_file())


def test_a_service_that_is_being_changed_is_locked(tmp_path, store, reporter):
    def plan(loaded):
        with pytest.raises(StateLocked, match="is being changed by process"):
            services.down(store, "svc")
        raise PreconditionFailed("enough")

    with pytest.raises(PreconditionFailed, match="enough"):
        run(write_recipe(tmp_path), store, reporter, plan=plan)


def test_ctrl_c_before_readiness_takes_the_service_down(tmp_path, store):
    class Impatient(Recorder):
        def progress(self, health):
            if health.stage:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(write_recipe(tmp_path), store, Impatient(), "slow")
    assert not living(store)
    assert status_of(store, "svc").condition == "failed"


def test_ctrl_c_while_replacing_brings_the_old_one_back(tmp_path, store, reporter):
    class Impatient(Recorder):
        def progress(self, health):
            if health.stage:
                raise KeyboardInterrupt

    port = free_port()
    run(write_recipe(tmp_path, port=port), store, reporter)
    with pytest.raises(KeyboardInterrupt):
        run(write_recipe(tmp_path, port=port, extra="scheduler: {policy: fcfs}"), store, Impatient(), "slow", "well")
    assert store.read("svc").revision == 1
    reap_until(lambda: status_of(store, "svc").condition == "running")


def test_in_the_foreground_the_process_stays_on_the_leash(tmp_path, store, reporter):
    applied = run(write_recipe(tmp_path), store, reporter, options=ApplyOptions(timeout_s=20, foreground=True))
    assert applied.started is not None
    applied.started.leash.close()
    reap_until(lambda: not living(store))
    applied.started.end()


def test_a_command_killed_while_it_waits_leaves_no_process(tmp_path):
    code = (
        "import sys; from pathlib import Path; from support.deploying import *\n"
        "from anychip.deploy.apply import *; from anychip.deploy.state import Store\n"
        "apply(sys.argv[1], ApplyOptions(), store=Store(Path(sys.argv[2])), reporter=Recorder(),"
        " launch=fake_launch('slow'))\n"
    )
    store, port = Store(tmp_path / "home"), free_port()
    command = [sys.executable, "-c", code, str(write_recipe(tmp_path, port=port)), str(store.home)]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}) as other:
        reap_until(lambda: is_taken(port))
        other.kill()
    reap_until(lambda: not is_taken(port))
    assert status_of(store, "svc").condition == "dead"
    assert services.down(store, "svc") == "cleaned"


def test_down_ends_children_that_ignore_it(tmp_path, store, reporter):
    applied = run(write_recipe(tmp_path), store, reporter, "child")
    (child,) = psutil.Process(applied.state.process.pid).children()
    assert services.down(store, "svc") == "stopped"
    assert supervisor.wait_gone([child], 0)
    assert services.down(store, "svc") == "unchanged"


def test_the_revision_file_is_enough_to_start_again(tmp_path, store, reporter):
    applied = run(write_recipe(tmp_path), store, reporter)
    revision = json.loads(store.files("svc").revision(1).read_text())
    assert revision["recipe"]["server"]["port"] == applied.state.port
    assert revision["recipe"]["model"]["source"] == str(tmp_path / "tiny")


def reap_until(condition, limit_s=15.0):
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        threading.Event().wait(0.02)
