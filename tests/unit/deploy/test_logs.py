"""Logs: the last lines, and what is added."""

from anychip.deploy.logs import follow, tail


def test_tail_gives_the_last_lines(tmp_path):
    log = tmp_path / "log"
    log.write_bytes(b"one\ntwo\nthr\xff\xc3")
    assert tail(log, 2) == ("two", "thr��")
    assert tail(log, 9, since=4) == ("two", "thr��")
    assert tail(log, 9, since=400) == ("one", "two", "thr��")
    assert tail(log, 0) == ()
    assert tail(tmp_path / "none", 5) == ()


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


def test_follow_waits_for_a_log_that_is_not_there_yet(tmp_path):
    log = tmp_path / "log"
    steps = iter([True, False])

    def keep_on():
        log.write_text("here\n")
        return next(steps)

    assert list(follow(log, 0, keep_on, poll_s=0)) == ["here\n"]
