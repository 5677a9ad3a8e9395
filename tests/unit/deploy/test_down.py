"""Ending services: beside damaged states, without state, while an apply is under way."""

import json
import os
import signal
import subprocess
import sys

import pytest

from anychip.deploy import services, supervisor
from anychip.deploy.status import status_of
from anychip_sdk.errors import StateLocked, UsageError
from support.deploying import free_port, write_recipe
from support.machines import until
from support.stores import lock_held_elsewhere, run, store

__all__ = ["run", "store"]


def remove(path):
    path.unlink()


def truncate(path):
    path.write_bytes(path.read_bytes()[:40])


def empty(path):
    path.write_bytes(b"")


def make_a_folder(path):
    path.unlink()
    path.mkdir()


def change(**fields):
    def it(path):
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))

    return it


DAMAGES = {
    "pid -1": change(process={"pid": -1, "started_at": 1.0}),
    "a huge pid": change(process={"pid": 10**30, "started_at": 1.0}),
    "a pid that is text": change(process={"pid": "12", "started_at": 1.0}),
    "a port out of range": change(port=70000),
    "another name": change(name="other"),
    "no schema": change(schema_version=None),
    "a newer schema": change(schema_version=2),
    "a list": lambda path: path.write_text("[]"),
    "truncated": truncate,
    "empty": empty,
    "a folder": make_a_folder,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_service_beside_a_damaged_state_is_shown_and_ended(tmp_path, store, run, damage):
    applied = run(write_recipe(tmp_path, port=free_port()))
    path = store.files("svc").state
    damage(path)
    status = status_of(store, "svc")
    assert (status.condition, status.revision, status.pid) == ("running", 1, applied.state.process.pid)
    assert status.url == applied.url
    assert str(path) in status.detail
    assert services.down(store, "svc") == "stopped"
    assert not supervisor.is_alive(applied.state.process)
    assert store.names() == ()
    assert os.path.lexists(f"{path}.damaged")


@pytest.mark.parametrize("damage", [truncate, make_a_folder])
def test_a_damaged_state_of_a_service_that_does_not_run_is_put_aside(tmp_path, store, run, damage):
    run(write_recipe(tmp_path))
    services.down(store, "svc")
    damage(store.files("svc").state)
    assert status_of(store, "svc").condition == "damaged"
    assert services.down(store, "svc") == "cleaned"
    with pytest.raises(UsageError):
        services.pick(store, "svc")


def test_a_service_without_state_is_found_by_its_process(tmp_path, store, run):
    applied = run(write_recipe(tmp_path, port=free_port()))
    remove(store.files("svc").state)
    assert services.pick(store, None) == "svc"
    assert services.require_living(store, "svc").port == applied.state.port
    assert services.down(store, "svc") == "stopped"


@pytest.mark.parametrize("fields", [{"process": {"pid": 1, "started_at": 1.0}}, {"started_at": 1e300}])
def test_a_pid_that_is_another_process_or_a_clock_that_was_set_changes_nothing(tmp_path, store, run, fields):
    applied = run(write_recipe(tmp_path, port=free_port()))
    change(**fields)(store.files("svc").state)
    status = status_of(store, "svc")
    assert (status.condition, status.pid) == ("running", applied.state.process.pid)
    assert 0 <= status.uptime_s < 60
    assert run(write_recipe(tmp_path, port=applied.state.port)).action == "unchanged"
    assert services.down(store, "svc") == "stopped"
    assert not supervisor.is_alive(applied.state.process)


def test_another_process_with_the_states_pid_is_never_ended(tmp_path, store, run):
    run(write_recipe(tmp_path))
    services.down(store, "svc")
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as other:
        own = supervisor.identify(other.pid)
        process = {"pid": own.pid, "started_at": own.started_at}
        change(process=process, status="running")(store.files("svc").state)
        assert status_of(store, "svc").condition == "dead"
        assert services.down(store, "svc") == "cleaned"
        assert other.poll() is None
        other.kill()


def test_apply_puts_a_damaged_state_aside_and_replaces_what_runs(tmp_path, store, run):
    first = run(write_recipe(tmp_path, port=free_port()))
    truncate(store.files("svc").state)
    second = run(write_recipe(tmp_path, port=first.state.port, extra="scheduler: {policy: fcfs}"))
    assert (second.action, second.state.revision) == ("replaced", 2)
    assert not supervisor.is_alive(first.state.process)


def test_a_command_that_holds_the_lock_and_does_not_listen_is_waited_for(store, monkeypatch):
    with lock_held_elsewhere(store) as other:
        monkeypatch.setattr(services, "GIVE_WAY_S", 0.2)
        with pytest.raises(StateLocked, match=f"is being changed by process {other.pid}"):
            services.down(store, "svc")
        assert other.poll() is None
        other.stdin.close()
        monkeypatch.setattr(services, "GIVE_WAY_S", 20.0)
        assert services.down(store, "svc") == "unchanged"


def test_a_command_that_listens_is_asked_to_give_way_until_it_does(store, monkeypatch):
    """The first time may be lost in a place that swallows what its handler raises."""
    monkeypatch.setattr(services, "ASK_AGAIN_S", 0.05)
    with lock_held_elsewhere(store, asked=3) as other:
        assert services.down(store, "svc") == "cancelled"
        assert other.wait(20) == 0


def test_a_command_that_ends_as_it_is_asked_is_nothing_to_tell(store, monkeypatch):
    def ended(pid, number):
        raise ProcessLookupError

    with lock_held_elsewhere(store, asked=1) as other:
        with monkeypatch.context() as patched:
            patched.setattr(os, "kill", ended)
            patched.setattr(services, "GIVE_WAY_S", 0.2)
            with pytest.raises(StateLocked):
                services.down(store, "svc")
        assert services.down(store, "svc") == "cancelled"
        assert other.wait(20) == 0


def test_a_service_that_is_applied_for_the_first_time_is_known_while_its_command_lives(store):
    with lock_held_elsewhere(store) as other:
        assert services.pick(store, None) == "svc"
        status = status_of(store, "svc")
        assert (status.condition, status.revision, status.pid) == ("loading", 0, None)
        assert f"process {other.pid} on " in status.detail
        other.stdin.close()
        other.wait(20)
    with pytest.raises(UsageError, match="no service 'svc'"):
        services.pick(store, "svc")
    with pytest.raises(UsageError):
        status_of(store, "svc")


def test_an_interrupted_down_is_told_by_status(tmp_path, store, run, monkeypatch):
    applied = run(write_recipe(tmp_path, port=free_port()))

    def interrupt(process, grace_s=0):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(supervisor, "stop", interrupt)
        with pytest.raises(KeyboardInterrupt):
            services.down(store, "svc")
    assert "the command that was to end it ended itself in the midst; revision 1 runs" in status_of(store, "svc").detail
    os.kill(applied.state.process.pid, signal.SIGTERM)
    until(lambda: status_of(store, "svc").condition == "stopped", 10)
