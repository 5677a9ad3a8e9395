"""Files that are read anew when they change."""

import asyncio
import os

import pytest
from structlog.testing import capture_logs

from anychip.server.watch import Watched, watch
from anychip_sdk.errors import PreconditionFailed


class Source:
    """A file and what was read of it."""

    def __init__(self, path):
        self.path = path
        self.reads = []

    def read(self):
        text = self.path.read_text()
        if text == "bad":
            self.reads.append(None)
            raise PreconditionFailed("it is bad")
        has_changed = bool(self.reads) and self.reads[-1] != text
        self.reads.append(text)
        return has_changed


@pytest.fixture
def source(tmp_path):
    (tmp_path / "file").write_text("one")
    return Source(tmp_path / "file")


def watched(source, script):
    """Runs the script's steps, each once the one before has been read."""

    async def run():
        watching = asyncio.create_task(watch([Watched("words", (source.path,), source.read)], poll_s=0.001))
        try:
            for count, step in enumerate(script, 1):
                await asyncio.wait_for(_until(lambda count=count: len(source.reads) >= count), 10)
                step()
            await asyncio.wait_for(_until(lambda: len(source.reads) > len(script)), 10)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    with capture_logs() as logs:
        asyncio.run(run())
    return logs


async def _until(condition):
    while not condition():
        await asyncio.sleep(0.001)


def test_a_changed_file_is_read_also_where_another_one_takes_its_place(source):
    def replace():
        draft = source.path.with_name("draft")
        draft.write_text("two")
        os.replace(draft, source.path)

    logs = watched(source, [replace, lambda: source.path.write_text("three")])
    assert source.reads[0] == "one"
    assert source.reads[-1] == "three"
    assert {line["event"] for line in logs} == {"words taken up anew"}


def test_a_file_that_cannot_be_read_is_told_once_and_read_again_when_it_changes(source):
    logs = watched(source, [lambda: source.path.write_text("bad"), lambda: source.path.write_text("good")])
    assert source.reads[-1] == "good"
    told = [line for line in logs if line["log_level"] == "error"]
    assert len(told) == source.reads.count(None)
    assert told[-1]["reason"] == "it is bad"


def test_nothing_to_watch_ends_at_once():
    asyncio.run(asyncio.wait_for(watch([]), 5))
