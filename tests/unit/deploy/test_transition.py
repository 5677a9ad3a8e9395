"""A replacement that fails or is interrupted at any step: the predecessor is left as it runs, or brought back."""

import errno
import os

import httpx
import pytest

from anychip.deploy import storage, supervisor
from anychip.deploy.interrupts import Interrupted
from anychip.deploy.lock import CANCEL
from anychip.deploy.status import status_of
from anychip_sdk.errors import NotReady, PreconditionFailed
from support.deploying import Recorder, free_port, write_recipe
from support.machines import until
from support.stores import run, store

__all__ = ["run", "store"]

CHANGED = "scheduler: {policy: fcfs}"


class Failing(Recorder):
    """Raises when something is said."""

    def __init__(self, text, error):
        super().__init__()
        self._text = text
        self._error = error

    def say(self, text):
        super().say(text)
        if self._text in text:
            raise self._error


@pytest.fixture
def first(tmp_path, run):
    """Revision 1, running."""
    return run(write_recipe(tmp_path, port=free_port()))


@pytest.fixture
def replace(tmp_path, run, first):
    """Applies a changed recipe."""

    def apply_it(*modes, reporter=None, **more):
        path = write_recipe(tmp_path, port=first.state.port, extra=CHANGED)
        return run(path, *modes, reporter=reporter, **more)

    return apply_it


def serves(applied):
    return httpx.get(f"{applied.url}/health", trust_env=False).status_code == 200


ERRORS = [
    (KeyboardInterrupt(), KeyboardInterrupt),
    (SystemExit(3), SystemExit),
    (RuntimeError("a bug"), NotReady),
    (MemoryError(), NotReady),
]


@pytest.mark.parametrize(("error", "told"), ERRORS)
def test_before_the_stop_the_predecessor_is_left_as_it_runs(store, first, replace, error, told):
    with pytest.raises(told):
        replace(reporter=Failing("stopping revision 1", error))
    assert store.read("svc").process == first.state.process
    assert store.read("svc").successor == 0
    assert status_of(store, "svc").condition == "running"
    assert status_of(store, "svc").detail == ""


@pytest.mark.parametrize(("error", "told"), ERRORS)
def test_after_the_stop_the_predecessor_is_brought_back(store, first, replace, error, told):
    with pytest.raises(told):
        replace(reporter=Failing("starting revision 2", error))
    assert not supervisor.is_alive(first.state.process)
    until(lambda: status_of(store, "svc").condition == "running", 15)
    assert status_of(store, "svc").revision == 1
    assert serves(first)


def test_a_new_process_that_cannot_stand_by_stops_nothing(store, first, replace):
    with pytest.raises(NotReady) as caught:
        replace("stillborn")
    assert caught.value.message.splitlines()[0] == "revision 2: the service ended while starting, with exit code 7"
    assert caught.value.message.splitlines()[-1] == f"revision 1 serves on {first.url}"
    assert store.read("svc").process == first.state.process
    assert serves(first)


@pytest.mark.parametrize("place", ["revisions", "service.log"])
def test_files_that_cannot_be_written_stop_nothing(store, first, replace, place):
    path = store.files("svc").folder / place
    path.rename(path.with_name("moved"))
    path.symlink_to(store.home)
    if place == "revisions":
        path.unlink()
        path.write_text("a file")
    with pytest.raises((PreconditionFailed, OSError)):
        replace()
    path.unlink()
    path.with_name("moved").rename(path)
    assert store.read("svc").process == first.state.process
    assert serves(first)


def test_a_state_that_cannot_be_written_after_the_stop_loses_no_service(store, first, replace, monkeypatch):
    write = storage.write

    def refuse(path, value):
        if path.name == "state.json" and not supervisor.is_alive(first.state.process):
            raise PreconditionFailed(f"{path} can't be written: No space left on device")
        write(path, value)

    monkeypatch.setattr(storage, "write", refuse)
    reporter = Recorder()
    with pytest.raises(NotReady, match=r"revision 2: .* No space left on device\nrevision 1 was brought back"):
        replace(reporter=reporter)
    status = status_of(store, "svc")
    assert (status.condition, status.revision) == ("running", 1)
    assert "the command that was to replace it by revision 2 ended in the midst; revision 1 runs" in status.detail
    assert any("warning: " in text for text in reporter.said)


def test_a_predecessor_gets_its_own_variables_back(tmp_path, store, run, monkeypatch):
    monkeypatch.setenv("MARK", "the first one's")
    port = free_port()
    run(write_recipe(tmp_path, port=port))
    monkeypatch.setenv("MARK", "the second one's")
    with pytest.raises(NotReady):
        run(write_recipe(tmp_path, port=port, extra=CHANGED), "crash", "well")
    assert supervisor.environment_of(store.read("svc").process)["MARK"] == "the first one's"


def test_a_cancelled_replacement_leaves_nothing_to_end(store, first, replace):
    with pytest.raises(Interrupted):
        replace(reporter=Failing("starting revision 2", Interrupted(CANCEL)))
    assert (store.read("svc").status, store.read("svc").process) == ("stopped", None)
    assert status_of(store, "svc").condition == "stopped"


def test_a_terminal_that_is_gone_does_not_keep_the_predecessor_from_coming_back(store, first, replace):
    class Gone(Recorder):
        def say(self, text):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        def progress(self, health):
            raise KeyboardInterrupt

        def done(self):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    class GoneLater(Gone):
        def say(self, text):
            if "bringing" in text:
                super().say(text)

    with pytest.raises(KeyboardInterrupt):
        replace("slow", "well", reporter=GoneLater())
    until(lambda: status_of(store, "svc").condition == "running", 15)
    assert status_of(store, "svc").revision == 1
