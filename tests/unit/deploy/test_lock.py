"""The lock of a service: one holder, who is named where that is possible, and none where it died."""

import os
import signal

import msgspec
import pytest

from anychip.deploy import lock, supervisor
from anychip.deploy.process_id import ProcessId
from anychip_sdk.errors import StateLocked


@pytest.fixture
def path(tmp_path):
    return tmp_path / "svc" / "lock"


def test_a_held_lock_is_refused_and_names_this_process(path):
    with lock.hold(path, "svc"):
        with pytest.raises(StateLocked, match=rf"service 'svc' is being changed by process {os.getpid()} on "):
            lock.hold(path, "svc").__enter__()
        assert lock.holder(path).is_here
    assert lock.holder(path) is None


def test_the_file_keeps_its_size_so_that_it_can_be_written_on_a_full_disk(path):
    with lock.hold(path, "svc"):
        assert path.stat().st_size == lock.HOLDER_BYTES
    assert path.stat().st_size == lock.HOLDER_BYTES


def test_a_holder_that_cannot_be_noted_holds_the_lock_all_the_same(path, monkeypatch):
    def refuse(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", refuse)
    with lock.hold(path, "svc"), pytest.raises(StateLocked, match="is being changed by another command"):
        lock.hold(path, "svc").__enter__()


def test_a_folder_in_the_locks_place_can_be_held(path):
    path.mkdir(parents=True)
    with lock.hold(path, "svc"), pytest.raises(StateLocked):
        lock.hold(path, "svc").__enter__()


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[]", b'{"process": {"pid": -1, "started_at": 1}}'])
def test_a_damaged_note_names_nobody(path, content):
    path.parent.mkdir()
    path.write_bytes(content)
    assert lock.holder(path) is None


def test_a_holder_that_died_or_whose_pid_is_in_use_again_is_not_here(path):
    own = supervisor.identify(os.getpid())
    here = os.uname().nodename
    assert lock.Holder(own, here, "").is_here
    assert not lock.Holder(ProcessId(own.pid, own.started_at - 100), here, "").is_here
    assert not lock.Holder(own, "another-machine", "").is_here


def test_a_holder_says_whether_it_listens_for_a_cancellation(path):
    with lock.hold(path, "svc"):
        assert not lock.holder(path).is_cancellable
    before = signal.signal(lock.CANCEL, lambda *_: None)
    try:
        with lock.hold(path, "svc"):
            assert lock.holder(path).is_cancellable
    finally:
        signal.signal(lock.CANCEL, before)


def test_a_long_command_line_fits(path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["platform", "é" * 5000, os.fsdecode(b"\xe9")])
    with lock.hold(path, "svc"):
        assert msgspec.json.encode(lock.holder(path))
