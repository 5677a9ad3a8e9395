"""`platform plugin new|check`: what they print, write and exit with."""

import json

import pytest

from anychip.cli.main import main
from anychip_sdk import check
from anychip_sdk.check import Problem, Report


@pytest.fixture
def reports(monkeypatch):
    """What the checks are made to find."""
    found = []
    monkeypatch.setattr(check, "check_plugins", lambda subject: tuple(found))
    return found


def report(*areas):
    problems = tuple(Problem(area, "is wrong") for area in areas)
    return Report("acme", "acme", "anychip-acme", "0.1.0", "anychip_acme", {"api": ">=1.0,<2"}, problems)


def test_new_writes_a_package_and_tells_what_comes_next(tmp_path, capsys):
    assert main(["plugin", "new", "acme", "--directory", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert str(tmp_path / "anychip-acme/pyproject.toml") in lines
    assert "platform plugin check acme" in lines
    assert (tmp_path / "anychip-acme/src/anychip_acme/backend.py").exists()


def test_new_as_json_names_everything(tmp_path, capsys):
    assert main(["plugin", "new", "acme-2x", "-d", str(tmp_path), "-o", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["schema_version"], told["distribution"], told["module"]) == (1, "anychip-acme-2x", "anychip_acme_2x")
    assert told["folder"] == str(tmp_path / "anychip-acme-2x")
    assert all((tmp_path / "anychip-acme-2x" / file).is_file() for file in told["files"])


def test_new_overwrites_nothing(tmp_path, capsys):
    assert main(["plugin", "new", "acme", "-d", str(tmp_path)]) == 0
    assert main(["plugin", "new", "acme", "-d", str(tmp_path)]) == 2
    assert "exists already; nothing was written" in capsys.readouterr().err


def test_new_refuses_a_name_with_a_better_one(tmp_path, capsys):
    assert main(["plugin", "new", "Acme_Chip", "-d", str(tmp_path)]) == 2
    assert "for example acme-chip" in capsys.readouterr().err


@pytest.mark.parametrize(("areas", "code"), [((), 0), (("claims",), 7), (("claims", "contract"), 4), (("package",), 4)])
def test_check_exits_by_what_is_wrong(reports, areas, code, capsys):
    reports.append(report(*areas))
    assert main(["plugin", "check", "acme"]) == code
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "acme  anychip-acme 0.1.0  anychip_acme"
    assert sum("is wrong" in line for line in lines) == len(areas)


def test_check_as_json_holds_every_report(reports, capsys):
    reports += [report(), report("manifest")]
    assert main(["plugin", "check", "--output", "json"]) == 4
    told = json.loads(capsys.readouterr().out)
    assert [plugin["passed"] for plugin in told["plugins"]] == [True, False]
    assert told["plugins"][1]["problems"] == [{"area": "manifest", "text": "is wrong"}]


def test_check_of_what_is_not_installed_exits_4(capsys):
    assert main(["plugin", "check", "nobody"]) == 4
    assert "no backend 'nobody' is installed" in capsys.readouterr().err
