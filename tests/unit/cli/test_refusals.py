"""What the command line says, and its exit code, where the machine refuses something."""

import json
import os
import subprocess
import sys

import pytest

import anychip.deploy.apply as applying
from anychip.cli.main import main
from support.deploying import fake_launch, free_port, write_recipe
from support.stores import run, store

__all__ = ["run", "store"]


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("ANYCHIP_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.mark.parametrize("verb", ["apply", "status", "down", "logs"])
def test_a_home_that_is_a_file_is_named(tmp_path, home, monkeypatch, capsys, verb):
    home.write_text("")
    monkeypatch.setattr(applying, "Launch", fake_launch)
    assert main([verb, *([str(write_recipe(tmp_path))] if verb == "apply" else [])]) == 4
    err = capsys.readouterr().err
    assert str(home) in err
    assert "internal error" not in err


def test_a_file_that_cannot_be_read_is_named_with_the_reason(tmp_path, home, monkeypatch, capsys):
    def refuse(loaded):
        raise PermissionError(13, "Permission denied", "/models/tiny/model.safetensors")

    monkeypatch.setattr(applying, "Launch", lambda: fake_launch(plan=refuse))
    assert main(["apply", str(write_recipe(tmp_path))]) == 4
    assert capsys.readouterr().err == "/models/tiny/model.safetensors: Permission denied\n"


def test_down_of_all_goes_on_after_a_problem_and_tells_it(tmp_path, home, store, run, capsys):
    for name in ("a", "b", "c"):
        run(write_recipe(tmp_path, name=name, port=free_port()))
    with store.lock("b"):
        assert main(["down", "--all"]) == 9
    out, err = capsys.readouterr()
    assert out.splitlines() == ["'a' stopped", "'b' could not be ended in order", "'c' stopped"]
    assert "service 'b' is being changed by process" in err
    with store.lock("b"):
        assert main(["down", "--all", "-o", "json"]) == 9
    said = json.loads(capsys.readouterr().out)["services"]
    assert [one["action"] for one in said] == ["unchanged", "failed", "unchanged"]
    assert "service 'b' is being changed" in said[1]["problem"]


@pytest.mark.parametrize("content", ["{", '{"schema_version": 1, "process": {"pid": -1}}'])
def test_one_damaged_state_hides_no_other_service(tmp_path, home, store, run, capsys, content):
    run(write_recipe(tmp_path, name="good", port=free_port()))
    run(write_recipe(tmp_path, name="bad", port=free_port()))
    store.files("bad").state.write_text(content)
    assert main(["status"]) == 0
    out = capsys.readouterr().out
    assert [line.split()[:2] for line in out.splitlines()[1:3]] == [["bad", "running"], ["good", "running"]]
    assert "bad: " in out
    assert "is damaged" in out
    assert main(["down", "--all"]) == 0
    assert capsys.readouterr().out == "'bad' stopped\n'good' stopped\n"


def test_a_recipe_whose_name_is_no_utf_8_is_applied_and_shown(tmp_path, home, store, monkeypatch, capsys):
    path = write_recipe(tmp_path).rename(tmp_path / os.fsdecode(b"caf\xe9.yaml"))
    monkeypatch.setattr(applying, "Launch", fake_launch)
    assert main(["apply", str(path)]) == 0
    assert main(["status", "-o", "json"]) == 0
    out = capsys.readouterr().out
    assert json.loads(out[out.index("{\n") :])["services"][0]["recipe_path"] == str(path)
    assert main(["apply", str(path.with_name("gone" + path.name))]) == 3
    assert "gonecaf\\udce9.yaml" in capsys.readouterr().err


def ended(*arguments, **streams):
    """The command line as a process, whose streams are files."""
    command = [sys.executable, "-m", "anychip", *arguments]
    return subprocess.run(command, text=True, check=False, **{"stderr": subprocess.PIPE, **streams})


def test_a_result_that_cannot_be_written_is_told_and_a_failure(home):
    with open("/dev/full", "w") as full:
        done = ended("schema", stdout=full)
    assert done.returncode == 4
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_error_that_nobody_can_be_told_keeps_its_exit_code(home):
    with open("/dev/full", "w") as full:
        assert ended("down", "svc", stdout=subprocess.DEVNULL, stderr=full).returncode == 2
