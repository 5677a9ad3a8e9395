"""The documents name what exists: files, verbs, exit codes, variables, metrics, endpoints."""

import ast
import re

import pytest

from anychip.cli.main import VERBS
from anychip.recipe import load
from anychip.server.app import ROUTES
from anychip.server.metrics import Metrics
from anychip_sdk import errors
from support.sources import NEUTRAL, PLUGINS, ROOT, documents, modules, short

READMES = ("README.md", "README.zh-CN.md")
LINK = re.compile(r"\]\(([^)\s]+)\)")
# A path in backticks that starts in one of the repository's folders; NAME and N stand for something.
PATH = re.compile(r"`((?:platform/src|sdk|plugins|tests|docs|recipes|benchmarks)/[\w./-]*)`")
PLACEHOLDERS = re.compile(r"NAME")
VARIABLE = re.compile(r"\bANYCHIP_[A-Z]+(?:_[A-Z]+)*(?:__)?")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    return [body for kind, body in FENCE.findall(text) if kind == language]


def anchors(text: str) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", documents(), ids=short)
def test_links_lead_somewhere(document):
    broken = []
    for link in LINK.findall(FENCE.sub("", document.read_text(encoding="utf-8"))):
        name, _, anchor = link.partition("#")
        if "://" in name:
            continue
        target = (document.parent / name).resolve() if name else document
        missing_anchor = anchor and target.suffix == ".md" and anchor not in anchors(target.read_text("utf-8"))
        if not target.exists() or missing_anchor:
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("document", documents(), ids=short)
def test_paths_in_backticks_exist(document):
    named = PATH.findall(document.read_text(encoding="utf-8"))
    assert [path for path in named if not PLACEHOLDERS.search(path) and not (ROOT / path).exists()] == []


@pytest.mark.parametrize("name", READMES)
def test_every_verb_is_in_the_readme(name):
    assert [verb for verb in VERBS if f"`platform {verb}" not in read(name)] == []


@pytest.mark.parametrize("name", READMES)
def test_every_command_of_the_readme_exists(name):
    used = set(re.findall(r"\bplatform ([a-z]+)\b", read(name))) - {"is"}
    assert sorted(used - set(VERBS)) == []


@pytest.mark.parametrize("name", READMES)
def test_every_exit_code_is_in_the_readme(name):
    kinds = [vars(errors)[kind] for kind in errors.__all__]
    rows = re.findall(r"^\| ([\d, 、]+) \|", read(name), re.MULTILINE)
    listed = {int(code) for row in rows for code in re.findall(r"\d+", row)}
    assert listed == {0, 130} | {kind.exit_code for kind in kinds}


def test_both_readmes_show_the_same_commands():
    def commands(name: str) -> list[str]:
        return re.findall(
            r"^\$ (make \S+|curl \S+|platform \S+)", "\n".join(blocks(read(name), "console")), re.MULTILINE
        )

    english = commands("README.md")
    assert english
    assert [one for one in commands("README.zh-CN.md") if one not in english] == []
    assert blocks(read("README.md"), "python") == blocks(read("README.zh-CN.md"), "python")


@pytest.mark.parametrize("name", READMES)
def test_the_recipe_of_the_readme_is_valid(name, tmp_path):
    (recipe,) = blocks(read(name), "yaml")
    (tmp_path / "base").mkdir()
    (tmp_path / "base/qwen3.yaml").write_text(read("recipes/base/qwen3.yaml"), encoding="utf-8")
    path = tmp_path / "qwen3-cpu.yaml"
    path.write_text(recipe, encoding="utf-8")
    assert load(path, env={}).recipe.backend.name == "cpu"


@pytest.mark.parametrize("document", documents(), ids=short)
def test_python_in_documents_is_python(document):
    for code in blocks(document.read_text(encoding="utf-8"), "python"):
        ast.parse(code if not code.startswith("def ") else code.rstrip() + ": ...")


def test_every_variable_of_the_sources_is_documented():
    used = {name for path in modules(*NEUTRAL, PLUGINS) for name in VARIABLE.findall(path.read_text(encoding="utf-8"))}
    documented = set(VARIABLE.findall(read("docs/operations.md")))
    assert {"ANYCHIP_HOME", "ANYCHIP_PLUGINS", "ANYCHIP_SET__"} <= used
    assert used == documented


def test_every_metric_is_documented():
    page = Metrics().render({}).decode()
    names = set(re.findall(r"^# TYPE anychip:(\w+) ", page, re.MULTILINE))
    listed = set(re.findall(r"`(\w+)`", read("docs/operations.md")))
    assert sorted(name for name in names if not name.endswith("_created") and name not in listed) == []


def test_every_endpoint_is_documented():
    page = read("docs/operations.md")
    assert [route.path for route in ROUTES if f" {route.path.split('/{')[0]}`" not in page] == []


def test_the_changelog_has_a_place_for_what_comes():
    assert "\n## Unreleased\n" in read("CHANGELOG.md")


def test_the_license_is_the_one_that_the_packages_name():
    assert "Apache License" in read("LICENSE")
    files = [ROOT / "sdk/pyproject.toml", ROOT / "platform/pyproject.toml", *PLUGINS.glob("*/pyproject.toml")]
    assert len(files) == 5
    assert [short(file) for file in files if 'license = "Apache-2.0"' not in file.read_text("utf-8")] == []


def test_every_decision_is_in_the_index():
    folder = ROOT / "docs/decisions"
    pages = sorted(path.name for path in folder.glob("[0-9]*.md"))
    assert pages == re.findall(r"\]\((\d{4}-[\w-]+\.md)\)", (folder / "README.md").read_text(encoding="utf-8"))
