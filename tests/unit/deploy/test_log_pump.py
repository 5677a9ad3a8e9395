"""The log's process: every line is an object, the files are bounded, nothing is lost on the way."""

import json
import os

import pytest

from anychip.deploy import log_pump
from anychip.deploy.log_pump import LINE_BYTES, LogFile, as_entry, open_log, pump


@pytest.fixture
def path(tmp_path):
    return tmp_path / "service.log"


def opened(path, **limits):
    return LogFile(str(path), open_log(str(path)), **limits)


def pumped(path, *writes, **limits):
    """The log after these writes into the pipe."""
    source, writer = os.pipe()
    log = opened(path, **limits)
    with os.fdopen(writer, "wb", buffering=0) as pipe:
        for text in writes:
            pipe.write(text)
    pump(source, log)
    log.close()
    os.close(source)
    return path.read_bytes().decode()


def entries(text):
    lines = text.split("\n")
    assert lines.pop() == ""
    found = [json.loads(line) for line in lines]
    assert all(isinstance(one, dict) for one in found)
    return found


def test_an_object_stays_as_it_is(path):
    line = b'{"event": "ready", "n": 1}\n'
    assert pumped(path, line) == line.decode()


@pytest.mark.parametrize(
    "line",
    [
        "Fatal Python error: Segmentation fault",
        '  File "x.py", line 3 in <module>',
        '"a text"',
        "[1, 2]",
        '{"event": NaN}',
        '{"event": "cut o',
        "{" * 3000,
        "\x00\x1b[31mred\x1b[0m",
        "\u2028 and \x85",
        "50%\r100%",
    ],
)
def test_anything_else_becomes_the_event_of_one(path, line):
    (one,) = entries(pumped(path, line.encode() + b"\n"))
    assert (one["event"], one["source"], one["level"]) == (line, "output", "info")
    assert one["timestamp"].endswith("Z")


def test_bytes_that_are_no_text_are_shown_escaped():
    assert json.loads(as_entry(b"\xff\xfe"))["event"] == "\\xff\\xfe"


def test_empty_lines_are_dropped_and_a_last_line_needs_no_end(path):
    assert [one["event"] for one in entries(pumped(path, b"one\r\n\n  \n", b"two"))] == ["one", "two"]


def test_a_line_without_an_end_is_cut_in_pieces(path):
    found = entries(pumped(path, *[b"x" * 60_000]))
    assert [len(one["event"]) for one in found] == [60_000]
    log = opened(path)
    source, writer = os.pipe()
    if os.fork() == 0:  # a pipe holds less than the line
        os.write(writer, b"y" * (2 * LINE_BYTES + 5))
        os._exit(0)
    os.close(writer)
    pump(source, log)
    os.wait()
    os.close(source)
    log.close()
    assert [len(one["event"]) for one in entries(path.read_text())[1:]] == [LINE_BYTES, LINE_BYTES, 5]


def test_a_log_rotates_while_it_is_written_and_older_ones_are_bounded(path):
    log = opened(path, limit_bytes=100, older=2)
    lines = [f'{{"event": {number:030}}}\n' for number in range(20)]
    for line in lines:
        log.write(line.encode())
    log.close()
    names = sorted(one.name for one in path.parent.iterdir())
    assert names == ["service.log", "service.log.1", "service.log.2"]
    files = [path.with_name(name).read_text() for name in reversed(names)]
    assert all(len(text) <= 100 for text in files)
    assert "".join(files) == "".join(lines[-len("".join(files).splitlines()) :])
    assert all(one.stat().st_mode & 0o777 == 0o600 for one in path.parent.iterdir())


def test_two_writers_of_one_log_rotate_it_once(path):
    old, new = opened(path, limit_bytes=60, older=9), opened(path, limit_bytes=60, older=9)
    lines = [f'{{"event": {number:010}}}\n' for number in range(12)]
    for number, line in enumerate(lines):
        (old if number % 2 else new).write(line.encode())
    old.close()
    new.close()
    files = sorted(path.parent.iterdir(), key=lambda one: int(one.suffix[1:]) if one.suffix[1:].isdigit() else 0)
    assert "".join(one.read_text() for one in reversed(files)) == "".join(lines)


def test_a_log_that_was_removed_or_moved_is_begun_anew(path):
    log = opened(path)
    log.write(b"{}\n")
    path.unlink()
    log.write(b'{"event": 2}\n')
    assert path.read_text() == '{"event": 2}\n'
    path.rename(path.with_name("elsewhere"))
    log.write(b'{"event": 3}\n')
    assert path.read_text() == '{"event": 3}\n'
    log.close()


def test_a_full_disk_is_survived_and_told_once_there_is_room(path, monkeypatch):
    log = opened(path)
    room = iter([5, 0, 0, 1000, 1000])  # bytes that the disk takes at each write

    def write(descriptor, data):
        if not (taken := min(next(room), len(data))):
            raise OSError(28, "No space left on device")
        return real(descriptor, data[:taken])

    real = os.write
    monkeypatch.setattr(log_pump.os, "write", write)
    log.write(b'{"event": 1}\n{"event": 2}\n')
    assert path.read_text() == ""  # no half a line
    log.write(b'{"event": 3}\n')
    log.write(b'{"event": 4}\n')
    log.write(b'{"event": 5}\n')
    told, last = entries(path.read_text())
    assert (told["event"], told["lines"]) == ("lines of the log were lost", 4)
    assert "No space left" in told["reason"]
    assert last == {"event": 5}
    log.close()
