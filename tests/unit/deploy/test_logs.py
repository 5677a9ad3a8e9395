"""Logs: the last lines, and what is added."""

import json

from anychip.deploy.log_pump import LogFile, open_log
from anychip.deploy.logs import follow, readable, tail


def test_tail_gives_the_last_lines(tmp_path):
    log = tmp_path / "log"
    log.write_bytes(b"one\ntwo\nthr\xff\xc3")
    assert tail(log, 2) == ("two", "thr��")
    assert tail(log, 9, since=4) == ("two", "thr��")
    assert tail(log, 9, since=400) == ("one", "two", "thr��")
    assert tail(log, 0) == ()
    assert tail(tmp_path / "none", 5) == ()


def test_tail_reads_on_in_older_logs(tmp_path):
    for name, text in (("log", "five\n"), ("log.1", "three\nfour\n"), ("log.2", "one\ntwo\n")):
        (tmp_path / name).write_text(text)
    log = tmp_path / "log"
    assert tail(log, 1) == ("five",)
    assert tail(log, 4) == ("two", "three", "four", "five")
    assert tail(log, 9) == ("one", "two", "three", "four", "five")
    assert tail(log, 9, since=2) == ("ve",)


def test_follow_gives_what_is_added_also_after_a_rotation(tmp_path):
    log = tmp_path / "log"
    log.write_text("old\n")
    steps = iter(["add", "rotate", "end"])

    def keep_on():
        step = next(steps)
        if step == "add":
            with log.open("a") as file:
                file.write("added\n")
        elif step == "rotate":
            log.rename(tmp_path / "log.1")
            log.write_text("new log, longer than the old one\n")
        return step != "end"

    assert list(follow(log, log.stat().st_size, keep_on, poll_s=0)) == ["added\n", "new log, longer than the old one\n"]


def test_follow_loses_nothing_however_often_the_log_rotates_between_two_looks(tmp_path):
    path = tmp_path / "log"
    log = LogFile(str(path), open_log(str(path)), limit_bytes=30, older=4)
    numbers = iter(range(60))
    written = []

    def keep_on():
        for _ in range(6):  # up to three rotations
            if (number := next(numbers, None)) is None:
                return False
            written.append(f'{{"event": {number}}}\n')
            log.write(written[-1].encode())
        return True

    assert "".join(follow(path, 0, keep_on, poll_s=0)) == "".join(written)
    assert len(written) == 60
    log.close()


def test_follow_starts_anew_in_a_log_that_was_emptied(tmp_path):
    log = tmp_path / "log"
    log.write_text("a line\n")
    steps = iter([True, False])

    def keep_on():
        log.write_text("new\n")
        return next(steps)

    assert list(follow(log, 7, keep_on, poll_s=0)) == ["new\n"]


def test_follow_waits_for_a_log_that_is_not_there_yet(tmp_path):
    log = tmp_path / "log"
    steps = iter([True, False])

    def keep_on():
        log.write_text("here\n")
        return next(steps)

    assert list(follow(log, 0, keep_on, poll_s=0)) == ["here\n"]


def test_entries_are_readable():
    assert readable(json.dumps({"event": "ready", "level": "info", "load_s": 3})) == "info: ready (load_s: 3)"
    assert readable(json.dumps({"event": "Fatal: oh", "level": "info", "source": "output"})) == "Fatal: oh"
    assert readable("a plain line") == "a plain line"
