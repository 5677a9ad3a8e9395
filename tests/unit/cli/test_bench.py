"""`platform bench`: its options, what it shows, its exit codes, and what it leaves behind."""

import json
import os
import signal
import subprocess
import sys

import psutil
import pytest

from anychip.bench.workload import shipped
from anychip.cli.main import main
from support.deploying import write_recipe
from support.fake_tokens import fake_tokens

WORKLOAD = "version: 1\nname: mine\nprompt: {own_tokens: 20}\noutput_tokens: 4\nrequests: {per_stream: 1}\n"
QUICK = ("--no-warm-up", "--repeats", "1", "--concurrency", "1,2")
DRIVER = """
import sys
import anychip.deploy.apply as applying
from anychip.cli.main import main
from support.fake_tokens import token_launch
applying.Launch = lambda: token_launch(gap_s=0.05)
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def workload(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(WORKLOAD, encoding="utf-8")
    return str(path)


@pytest.fixture(autouse=True)
def keep_signals():
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_a_url_is_measured_and_shown(workload, capsys):
    with fake_tokens() as (url, _):
        assert main(["bench", url, "-w", workload, *QUICK]) == 0
    shown = capsys.readouterr()
    assert "mine, medians of 1 run" in shown.out
    assert "1 at once" in shown.out
    assert "2 at once" in shown.out
    assert "2 at once, run 1 of 1" in shown.err


def test_json_is_the_whole_result_and_files_hold_it_too(workload, capsys, tmp_path):
    save, raw, plot = (tmp_path / name for name in ("r.json", "r.jsonl", "r.svg"))
    files = ("--save", str(save), "--raw", str(raw), "--plot", str(plot))
    with fake_tokens() as (url, _):
        assert main(["bench", url, "-w", workload, *QUICK, *files, "--output", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document.pop("schema_version") == 1
    assert json.loads(save.read_text()) == document
    requests = [json.loads(line) for line in raw.read_text().splitlines()]
    assert [len(one["record"]["event_s"]) for one in requests] == [4, 4, 4]
    assert plot.read_text().startswith("<?xml")


def test_a_result_with_failed_requests_is_shown_and_exits_with_1(workload, capsys):
    with fake_tokens(short_prompts=(3,)) as (url, _):
        assert main(["bench", url, "-w", workload, *QUICK]) == 1
    shown = capsys.readouterr()
    assert "2 at once" in shown.out
    assert "4 output tokens were asked for, 3 came" in shown.err


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--concurrency", "1", "--rate", "2"), "not both"),
        (("--concurrency", "1,x"), "expected different numbers above 0"),
        (("--concurrency", "1.5"), "expected different numbers above 0"),
        (("--concurrency", "2,2"), "expected different numbers above 0"),
        (("--rate", "0"), "expected different numbers above 0"),
        (("--rate", "nan"), "expected different numbers above 0"),
        (("--slo-ttft", "500"), "--slo-ttft: found 500 without a unit"),
        (("--plot", "x.gif"), "expected a name that ends in .png or .svg"),
        (("--workload", "nothing"), "no workload 'nothing'"),
        (("--api-key-env", "KEY"), "--api-key-env is for a URL"),
    ],
)
def test_a_wrong_option_exits_with_2_before_anything_is_sent(arguments, error, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("ANYCHIP_HOME", str(tmp_path))
    assert main(["bench", *arguments]) == 2
    assert error in capsys.readouterr().err


def test_a_broken_workload_exits_with_3(tmp_path, capsys):
    path = tmp_path / "bad.yaml"
    path.write_text(WORKLOAD + "colour: red\n", encoding="utf-8")
    assert main(["bench", "http://127.0.0.1:9", "-w", str(path)]) == 3
    assert f"{path}:6:1  colour: unknown key" in capsys.readouterr().err


def test_the_list_names_what_is_shipped(capsys):
    assert main(["bench", "--list"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]]
    assert tuple(listed) == shipped()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_nothing_running(tmp_path, workload, number):
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "ANYCHIP_HOME": str(tmp_path / "home")}
    options = ("-w", workload, "--requests", "1000", "--no-warm-up")
    command = [sys.executable, "-c", DRIVER, "bench", str(write_recipe(tmp_path)), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ) as running:
        while "at once, run 1" not in running.stderr.readline():
            assert running.poll() is None
        children = psutil.Process(running.pid).children(recursive=True)
        assert children
        running.send_signal(number)
        assert running.wait(20) == 130
        assert "Traceback" not in running.stderr.read()
    gone, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []
    assert len(gone) == len(children)
    assert not (tmp_path / "home").exists() or list((tmp_path / "home").glob("services/*")) == []
