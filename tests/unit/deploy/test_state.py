"""The state of services: private, atomic, locked, and clear about damage."""

import json
import os
import stat

import msgspec
import pytest

from anychip.deploy.state import ProcessId, Revision, ServiceState, Store, read_revision
from anychip_sdk.errors import IntegrityFailed, StateLocked
from support.stores import lock_held_elsewhere


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "home")


def state(**changes):
    values = {
        "name": "svc",
        "revision": 1,
        "status": "running",
        "process": ProcessId(1, 2.5),
        "host": "127.0.0.1",
        "port": 8000,
        "digest": "d",
        "recipe_path": "/r.yaml",
        "model": "m",
        "backend": "b",
        "started_at": 3.5,
    }
    return ServiceState(**{**values, **changes})


def test_what_is_written_is_read_and_the_serial_grows(store):
    assert store.read("svc") is None
    assert store.write(state()).serial == 1
    written = store.write(state(status="stopped", process=None))
    assert written.serial == 2
    assert store.read("svc") == written
    assert store.names() == ("svc",)


def test_folders_and_files_are_private(store):
    store.write(state())
    with store.lock("svc"):
        for path in [store.home, *store.home.rglob("*")]:
            mode = stat.S_IMODE(path.stat().st_mode)
            assert mode == (0o700 if path.is_dir() else 0o600), path


def test_no_draft_is_left(store):
    store.write(state())
    store.write(state())
    assert [path.name for path in store.files("svc").folder.iterdir()] == ["state.json"]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema_version": 1}', '{"schema_version": 1, "name": 5}'])
def test_a_damaged_file_is_named(store, content):
    store.write(state())
    store.files("svc").state.write_text(content)
    with pytest.raises(IntegrityFailed, match=r"state\.json is damaged"):
        store.read("svc")


def test_a_newer_schema_is_refused(store):
    store.write(state())
    path = store.files("svc").state
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema_version": 2}))
    with pytest.raises(IntegrityFailed, match="schema version 2, this anychip knows 1"):
        store.read("svc")


def test_revisions_are_numbered_on(store):
    assert store.next_revision("svc") == 1
    values = {"name": "svc", "digest": "d", "recipe_path": "/r", "working_folder": "/"}
    for number in (1, 10):
        path = store.add_revision(Revision(revision=number, recipe={"a": 1}, **values))
    assert read_revision(path).recipe == {"a": 1}
    path.with_suffix(".failure.json").write_text("{}")
    assert store.next_revision("svc") == 11


def test_a_held_lock_tells_pid_and_command(store):
    with lock_held_elsewhere(store) as other:
        with pytest.raises(StateLocked) as caught, store.lock("svc"):
            pass
        assert f"is being changed by process {other.pid} on {os.uname().nodename} (-c " in caught.value.message
        assert caught.value.exit_code == 9
        other.kill()
        other.wait()
    with store.lock("svc"):  # the system gave a dead holder's lock back
        pass


def test_a_lock_is_free_after_an_error(store):
    with pytest.raises(ZeroDivisionError), store.lock("svc"):
        raise ZeroDivisionError
    with store.lock("svc"):
        pass


def test_states_hold_no_field_for_a_secret():
    names = {field.name for kind in (ServiceState, Revision) for field in msgspec.structs.fields(kind)}
    assert not any("key" in name or "secret" in name for name in names)


def test_purge_forgets(store):
    store.write(state())
    store.purge("svc")
    assert store.names() == ()
    store.purge("svc")
