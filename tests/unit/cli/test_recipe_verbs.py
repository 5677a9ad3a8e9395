"""The verbs about recipes, as a user calls them: output, streams and exit codes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from anychip.cli.main import main
from anychip.recipe import load

ROOT = Path(__file__).parents[3]
MINIMAL = "version: 1\nname: a\nmodel: {source: /m}\n"


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("good.yaml").write_text(MINIMAL + "server: {port: 9, served_name: a$$b}\n", encoding="utf-8")
    Path("bad.yaml").write_text(MINIMAL + "sever: {port: 9}\n", encoding="utf-8")
    return "good.yaml"


def test_validate_checks_all_files_and_exits_3_when_one_is_wrong(recipe, capsys):
    assert main(["validate", recipe]) == 0
    assert capsys.readouterr().out.strip() == "1 valid"
    assert main(["validate", "bad.yaml", recipe, "gone.yaml"]) == 3
    shown = capsys.readouterr()
    assert shown.err.splitlines() == [
        "bad.yaml:4:1  sever: unknown key. Did you mean server?",
        "gone.yaml:1:1  no such file. Did you mean good.yaml?",
    ]
    assert shown.out.strip() == "2 problems in 2 of 3 recipes"


def test_validate_as_json_is_one_document_on_stdout(recipe, capsys):
    assert main(["validate", "bad.yaml", recipe, "--output", "json", "--set", "server.port=1"]) == 3
    shown = capsys.readouterr()
    document = json.loads(shown.out)
    assert document["schema_version"] == 1
    assert [r["valid"] for r in document["recipes"]] == [False, True]
    assert shown.err == ""


def test_validate_notes_a_fusion_that_only_a_backend_may_bring(recipe, capsys):
    assert main(["validate", recipe, "--set", "fusion.policies=[ffn, fnn]"]) == 0
    shown = capsys.readouterr()
    note = "--set  fusion.policies: fnn is not a built-in fusion, so only a backend that brings it can plan this."
    assert shown.err.splitlines() == [f"note: {note} Did you mean ffn?"]
    assert shown.out.strip() == "1 valid"
    assert main(["validate", recipe, "--set", "fusion.policies=[zip]", "--output", "json"]) == 0
    (only,) = json.loads(capsys.readouterr().out)["recipes"]
    assert (only["valid"], only["problems"]) == (True, [])
    assert only["notes"] == [note.replace("fnn", "zip")]


def test_show_prints_a_file_that_loads_to_the_same_recipe(recipe, capsys):
    assert main(["recipe", "show", recipe, "--resolved"]) == 0
    Path("again.yaml").write_text(capsys.readouterr().out, encoding="utf-8")
    assert load("again.yaml", env={}).recipe == load(recipe, env={}).recipe


def test_show_as_json_has_the_digest(recipe, capsys):
    assert main(["recipe", "show", recipe, "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["recipe"]["server"]["served_name"] == "a$b"
    assert len(document["digest"]) == 64


def test_show_origins_names_every_place(recipe, capsys):
    assert main(["recipe", "show", recipe, "--origins", "--set", "memory.page_size=4"]) == 0
    rows = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines()}
    assert rows["server.port"] == ["9", "good.yaml:4:16"]
    assert rows["memory.page_size"] == ["4", "--set"]
    assert rows["scheduler.policy"] == ["lpm", "default"]


def test_show_of_an_invalid_recipe_exits_3(recipe, capsys):
    assert main(["recipe", "show", "bad.yaml"]) == 3
    assert capsys.readouterr().out == ""


def test_resolved_and_origins_exclude_each_other(recipe):
    assert main(["recipe", "show", recipe, "--resolved", "--origins"]) == 2


def test_explain_says_type_default_unit_and_meaning(capsys):
    assert main(["recipe", "explain", "scheduler.chunked_prefill_size"]) == 0
    shown = capsys.readouterr().out
    for part in ("a whole number of at least 1", "auto", "tokens", "chunks"):
        assert part in shown
    assert main(["recipe", "explain", "model.dtype", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["allowed"] == ["auto", "float32", "float16", "bfloat16"]


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("static_fraction", "memory.static_fraction"),
        ("memory.static_fractoin", "memory.static_fraction"),
        ("modle", "model"),
    ],
)
def test_explain_of_an_unknown_key_exits_2_with_the_nearest(key, meant, capsys):
    assert main(["recipe", "explain", key]) == 2
    assert f"did you mean {meant}?" in capsys.readouterr().err


def test_schema_prints_both_formats(capsys):
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "anychip recipe, version 1"
    assert main(["schema", "--format", "markdown"]) == 0
    assert capsys.readouterr().out.startswith("# Recipe reference")


def test_wrong_usage_exits_2(capsys):
    assert main(["nonsense"]) == 2
    assert main(["validate"]) == 2
    assert main(["schema", "--format", "xml"]) == 2
    capsys.readouterr()


def test_help_and_version_exit_0(capsys):
    assert main(["--help"]) == 0
    assert "Exit codes" in capsys.readouterr().out
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("anychip ")


def test_an_interrupt_exits_130(monkeypatch, recipe):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("anychip.recipe.load", interrupted)
    assert main(["validate", recipe]) == 130


def test_an_unexpected_error_is_one_line_and_its_traceback_is_for_verbose(monkeypatch, recipe, capsys):
    def broken(*args, **kwargs):
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("anychip.recipe.load", broken)
    monkeypatch.setenv("ANYCHIP_DEBUG", "0")
    assert main(["validate", recipe]) == 1
    assert capsys.readouterr().err == "internal error: ZeroDivisionError: oops (--verbose shows where)\n"
    assert main(["--verbose", "validate", recipe]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_no_colours_where_the_output_is_no_terminal(recipe, capsys):
    main(["recipe", "show", recipe, "--origins"])
    assert "\x1b" not in capsys.readouterr().out


def test_help_neither_imports_torch_nor_reads_the_schema():
    probe = (
        "import sys, types, importlib.util\n"
        "spec = importlib.util.find_spec('anychip_sdk')\n"
        "sdk = types.ModuleType('anychip_sdk')\n"
        "sdk.__path__ = list(spec.submodule_search_locations)\n"
        "sys.modules['anychip_sdk'] = sdk\n"  # what the SDK's own package imports is not the command's doing
        "from anychip.cli.main import main\n"
        "assert main(['--help']) == 0\n"
        "print([name for name in ('torch', 'pydantic', 'ruamel.yaml', 'numpy') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
