"""The verbs around services, against a quick fake one: what they say, and their exit codes."""

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from rich.console import Console

import anychip.deploy.apply as applying
from anychip.cli.apply import Bar
from anychip.cli.main import main
from anychip.cli.status import duration
from anychip.deploy import services, supervisor
from anychip.deploy.client import Health
from anychip.deploy.state import Store
from anychip.deploy.status import status_of
from support.deploying import fake_launch, free_port, write_recipe

DRIVER = """
import sys
import anychip.deploy.apply as applying
from anychip.cli.apply import Bar
from anychip.cli.main import main
from support.deploying import fake_launch
mode = sys.argv.pop(1)
applying.Launch = lambda: fake_launch(mode)
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("ANYCHIP_HOME", str(tmp_path / "home"))
    found = Store(tmp_path / "home")
    before = signal.getsignal(signal.SIGTERM)
    yield found
    signal.signal(signal.SIGTERM, before)
    for name in found.names():
        services.down(found, name)


@pytest.fixture
def fake(monkeypatch):
    def use(*modes):
        launch = fake_launch(*modes)
        monkeypatch.setattr(applying, "Launch", lambda: launch)

    use("well")
    return use


@pytest.fixture
def service(tmp_path, store, fake, capsys):
    """A running service called svc."""
    assert main(["apply", str(write_recipe(tmp_path, port=free_port()))]) == 0
    capsys.readouterr()
    return store.read("svc")


def until(condition, limit_s=20.0):
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        threading.Event().wait(0.02)


def test_apply_prints_the_endpoint_a_curl_line_the_log_and_the_way_to_end_it(tmp_path, store, fake, capsys):
    port = free_port()
    assert main(["apply", str(write_recipe(tmp_path, port=port))]) == 0
    out, err = capsys.readouterr()
    log = store.files("svc").log
    assert out.splitlines() == [
        f"'svc' serves tiny on http://127.0.0.1:{port} (revision 1)",
        f"  try    curl http://127.0.0.1:{port}/v1/chat/completions -H 'Content-Type: application/json' "
        '-d \'{"model":"tiny","messages":[{"role":"user","content":"What is the capital of France? '
        'Answer in one sentence."}],"temperature":0}\'',
        "  chat   platform chat svc",
        f"  log    {log}",
        "  end    platform down svc",
    ]
    assert err.splitlines()[:2] == ["the plan", "starting revision 1 of 'svc'"]


def test_apply_again_says_no_changes(tmp_path, service, capsys):
    assert main(["apply", str(tmp_path / "svc.yaml")]) == 0
    assert capsys.readouterr().out == f"no changes: 'svc' serves tiny on http://127.0.0.1:{service.port}\n"


def test_apply_tells_json_on_stdout_alone(tmp_path, store, fake, capsys):
    assert main(["apply", str(write_recipe(tmp_path)), "--output", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    state = store.read("svc")
    assert told == {
        "schema_version": 1,
        "name": "svc",
        "action": "started",
        "revision": 1,
        "url": f"http://127.0.0.1:{state.port}",
        "model": "tiny",
        "backend": "fake",
        "emulated": False,
        "pid": state.process.pid,
        "log_path": str(store.files("svc").log),
    }


def test_apply_that_fails_exits_with_five(tmp_path, store, fake, capsys):
    fake("crash")
    assert main(["apply", str(write_recipe(tmp_path))]) == 5
    assert "the chip is on fire" in capsys.readouterr().err


def test_apply_of_a_slow_service_shows_what_is_loading(tmp_path, store, fake, capsys):
    fake("slow")
    assert main(["apply", str(write_recipe(tmp_path)), "--timeout", "1"]) == 5
    err = capsys.readouterr().err
    assert "  weights\n" in err
    assert "not ready after 1 s (last seen: weights)" in err


def test_on_a_terminal_one_bar_follows_the_stages():
    bar, shown = Bar(), io.StringIO()
    bar._console = Console(file=shown, force_terminal=True, width=100)
    for health in (Health("unreachable"), Health("loading", "verify"), Health("loading", "load", 5, 10, "a.weight")):
        bar.progress(health)
        bar._progress.refresh()
    bar.done()
    bar.say("done [all]")
    assert " 50%" in shown.getvalue()
    assert "a.weight" in shown.getvalue()
    assert shown.getvalue().endswith("done [all]\n")


def test_set_wins_over_the_recipe(tmp_path, store, fake):
    assert main(["apply", str(write_recipe(tmp_path)), "--set", "name=other"]) == 0
    assert store.names() == ("other",)


def test_status_shows_each_service(service, capsys):
    assert main(["status"]) == 0
    header, row = capsys.readouterr().out.splitlines()
    assert header.split("  ")[0] == "NAME"
    cells = row.split()
    assert cells[:3] == ["svc", "running", "1"]
    assert cells[4:] == [f"http://127.0.0.1:{service.port}", "tiny", "fake", "2", "1", "40%"]


def test_status_as_json(service, capsys):
    assert main(["status", "svc", "-o", "json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["services"]
    assert (told["condition"], told["kv_use"], told["pid"]) == ("running", 0.4, service.process.pid)


def test_status_of_a_killed_service_says_dead(service, capsys):
    os.kill(service.process.pid, signal.SIGKILL)
    until(lambda: not supervisor.is_alive(service.process))
    assert main(["status"]) == 0
    row, detail = capsys.readouterr().out.splitlines()[1:]
    assert row.split()[1] == "dead"
    assert detail == f"svc: its process {service.process.pid} ended by itself"


def test_status_without_services(store, capsys):
    assert main(["status"]) == 0
    assert capsys.readouterr().out == "there is no service; platform apply RECIPE starts one\n"


def test_logs_shows_the_last_lines_also_after_the_end(service, store, capsys):
    services.down(store, "svc")
    with store.files("svc").log.open("a") as log:
        log.write("one\ntwo\n")
    assert main(["logs", "--tail", "1"]) == 0
    assert capsys.readouterr().out == "two\n"
    assert main(["logs", "svc"]) == 0
    first, *added = capsys.readouterr().out.splitlines()
    assert json.loads(first)["event"] == "fake service, revision 1, mode well"
    assert added == ["one", "two"]


def test_logs_follows_until_it_is_interrupted(service, store):
    command = [sys.executable, "-m", "anychip", "logs", "-f", "--tail", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as follower:
        stop = threading.Event()

        def write():
            while not stop.wait(0.05):
                with store.files("svc").log.open("a") as log:
                    log.write("more\n")

        writer = threading.Thread(target=write)
        writer.start()
        try:
            assert follower.stdout.readline() == "more\n"
        finally:
            stop.set()
            writer.join()
        follower.send_signal(signal.SIGINT)
        follower.stdout.read()
        assert follower.wait(10) == 130
        assert "Traceback" not in follower.stderr.read()


def test_down_says_what_it_did_and_may_be_repeated(service, capsys):
    said = []
    for _ in range(2):
        assert main(["down"]) == 0
        said.append(capsys.readouterr().out)
    assert said == ["'svc' stopped\n", "'svc' does not run\n"]


def test_down_cleans_up_after_a_killed_service(service, capsys):
    os.kill(service.process.pid, signal.SIGKILL)
    until(lambda: not supervisor.is_alive(service.process))
    assert main(["down", "svc"]) == 0
    assert capsys.readouterr().out == "'svc' had ended by itself; cleaned up\n"


def test_down_all_ends_all_and_purge_forgets(tmp_path, store, service, capsys):
    assert main(["apply", str(write_recipe(tmp_path, name="other"))]) == 0
    capsys.readouterr()
    assert main(["down", "--all", "--purge"]) == 0
    assert capsys.readouterr().out == "'other' stopped, forgotten\n'svc' stopped, forgotten\n"
    assert store.names() == ()
    assert main(["down", "--all"]) == 0
    assert capsys.readouterr().out == "there is no service\n"


def test_down_with_a_name_and_all_is_a_usage_error(service, capsys):
    assert main(["down", "svc", "--all"]) == 2


def test_an_unknown_name_is_a_usage_error(service, capsys):
    assert main(["logs", "svd"]) == 2
    assert "no service 'svd'; known: svc. Did you mean 'svc'?" in capsys.readouterr().err


def test_a_locked_service_is_exit_code_nine(service, store, capsys):
    with store.lock("svc"):
        assert main(["down"]) == 9
    assert f"is being changed by process {os.getpid()}" in capsys.readouterr().err


def test_chat_with_one_message_prints_the_answer(service, capsys):
    assert main(["chat", "--message", "hello"]) == 0
    assert capsys.readouterr().out == "Hm.\nYou said hello\n"


def test_chat_reads_lines_and_keeps_the_conversation(service, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("one\n\n/reset\n/what\nfail\ntwo\n/quit\nthree\n"))
    assert main(["chat"]) == 0
    out, err = capsys.readouterr()
    assert out == "Hm.\nYou said one\nHm.\nYou said two\n"
    assert "forgotten" in err
    assert "answered 400: no" in err


def test_chat_ends_with_its_input(service, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("last"))
    assert main(["chat", "svc"]) == 0
    assert capsys.readouterr().out == "Hm.\nYou said last\n"


def test_ctrl_c_cancels_an_answer_and_the_chat_goes_on(service, store):
    command = [sys.executable, "-m", "anychip", "chat"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as chat:
        chat.stdin.write("forever\n")
        chat.stdin.flush()
        assert chat.stdout.read(6) == "on on "
        chat.send_signal(signal.SIGINT)
        until(lambda: "the client left" in store.files("svc").log.read_text())
        out, err = chat.communicate("two\n/quit\n", timeout=20)
    assert out.endswith("Hm.\nYou said two\n")
    assert "cancelled" in err
    assert chat.returncode == 0


def test_chat_with_a_service_that_does_not_run_says_how_to_start_it(service, store, capsys):
    services.down(store, "svc")
    assert main(["chat"]) == 4
    assert "service 'svc' does not run" in capsys.readouterr().err


def test_chat_tells_an_error_of_one_message(service, capsys):
    assert main(["chat", "-m", "break"]) == 1
    assert "the engine died" in capsys.readouterr().err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGHUP, 130), (signal.SIGTERM, 0)])
def test_the_foreground_ends_everything_when_interrupted(tmp_path, store, number, code):
    path = write_recipe(tmp_path, port=free_port())
    with drive("well", "apply", str(path), "--foreground") as command:
        assert command.stdout.readline().startswith("'svc' serves tiny")
        state = store.read("svc")
        command.send_signal(number)
        command.stdout.read()
        assert command.wait(20) == code
        assert "Traceback" not in command.stderr.read()
    assert not supervisor.is_alive(state.process)
    assert status_of(store, "svc").condition == "stopped"


def test_the_foreground_ends_with_its_service(tmp_path, store):
    with drive("well", "apply", str(write_recipe(tmp_path)), "--foreground") as command:
        assert command.stdout.readline().startswith("'svc' serves tiny")
        os.kill(store.read("svc").process.pid, signal.SIGKILL)
        assert command.wait(20) == 1
        assert "'svc' ended with exit code -9" in command.stderr.read()
    assert status_of(store, "svc").condition == "dead"


def test_the_foreground_ends_with_zero_where_its_service_is_told_to_end(tmp_path, store, capsys):
    with drive("well", "apply", str(write_recipe(tmp_path)), "--foreground") as command:
        assert command.stdout.readline().startswith("'svc' serves tiny")
        assert main(["down", "svc"]) == 0
        assert capsys.readouterr().out == "'svc' stopped\n"
        assert command.wait(20) == 0
    assert status_of(store, "svc").condition == "stopped"


def test_a_killed_foreground_leaves_no_service(tmp_path, store):
    with drive("well", "apply", str(write_recipe(tmp_path)), "--foreground") as command:
        assert command.stdout.readline().startswith("'svc' serves tiny")
        state = store.read("svc")
        command.kill()
    until(lambda: not supervisor.is_alive(state.process))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupting_apply_before_readiness_takes_the_service_down(tmp_path, store, number):
    with drive("slow", "apply", str(write_recipe(tmp_path))) as command:
        until(lambda: (state := store.read("svc")) is not None and state.process is not None)
        process = store.read("svc").process
        until(lambda: "weights" in command.stderr.readline())
        command.send_signal(number)
        assert command.wait(20) == 130
        said = command.stderr.read()
        assert "Traceback" not in said
        assert f"interrupted by {number.name}" in said
    assert not supervisor.is_alive(process)
    assert status_of(store, "svc").condition == "failed"


def drive(mode, *arguments):
    """The command line in a process of its own, with the fake service behind it."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", DRIVER, mode, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ)


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "-"), (42.9, "42s"), (192, "3m12s"), (18120, "5h02m"), (370800, "4d07h")]
)
def test_durations_are_short(seconds, text):
    assert duration(seconds) == text
