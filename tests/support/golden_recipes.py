"""The broken recipes in tests/golden/recipes and what they report. Knows no recipe's fault.

A case says its environment and its `--set` in comments: `# env: NAME=value`, `# set: key=value`.
"""

import contextlib
import os
import re
from pathlib import Path

from anychip.recipe import load
from anychip_sdk.errors import RecipeInvalid

FOLDER = Path(__file__).parents[1] / "golden" / "recipes"
CASES = sorted(FOLDER.glob("[0-9][0-9]-*.yaml"))


def expected_file(case: Path) -> Path:
    return case.with_suffix(".txt")


def outcome(case: Path) -> str:
    text = case.read_text(encoding="utf-8")
    env = dict(line.split("=", 1) for line in re.findall("^# env: (.*)$", text, re.MULTILINE))
    sets = re.findall("^# set: (.*)$", text, re.MULTILINE)
    with _inside(FOLDER):
        try:
            load(case.name, sets=sets, env=env)
        except RecipeInvalid as error:
            return f"{error}\n"
    return "valid\n"


@contextlib.contextmanager
def _inside(folder: Path):
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
