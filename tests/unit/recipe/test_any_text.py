"""Whatever a file holds, loading it gives a recipe or says what is wrong, with the file's name; nothing else."""

import json
import os
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anychip.recipe import load
from anychip.recipe.keys import all_keys
from anychip_sdk.errors import RecipeInvalid

RECIPE = (Path(__file__).parents[3] / "recipes" / "qwen3-kunlun.yaml").read_text(encoding="utf-8")
BASE = Path(__file__).parents[3] / "recipes" / "base" / "qwen3.yaml"

leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
values = st.recursive(leaves, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=5), v, max_size=3))


def outcome(text, name="r.yaml"):
    """The problems of a recipe; none when it is right."""
    Path("r.yaml").write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        load(name, env={})
    except RecipeInvalid as error:
        return error.problems
    return ()


@pytest.fixture(autouse=True, scope="module")
def folder(tmp_path_factory):
    before, here = Path.cwd(), tmp_path_factory.mktemp("recipes")
    (here / "base").mkdir()
    (here / "base" / "qwen3.yaml").write_bytes(BASE.read_bytes())
    os.chdir(here)
    yield
    os.chdir(before)


@settings(deadline=None, max_examples=150)
@given(st.text(max_size=60))
def test_any_text_is_answered_in_problems(text):
    for problem in outcome(text):
        assert problem.startswith("r.yaml:")


@settings(deadline=None, max_examples=150)
@given(st.text(alphabet="ab:-[]{}#&*!|>'\"%@`\n $<?,", max_size=30))
def test_any_yaml_syntax_is_answered_in_problems(text):
    for problem in outcome(text):
        assert problem.startswith("r.yaml:")


def test_a_damaged_recipe_is_answered_in_problems():
    source = random.Random(0)
    for _ in range(60):
        at, characters = source.randrange(len(RECIPE)), source.choice(["", ":", "\t", "{", "*", "${", "'", "\n", "- "])
        text = RECIPE[:at] + characters + RECIPE[at + source.randrange(4) :]
        for problem in outcome(text):
            assert problem.startswith(("r.yaml:", "base/qwen3.yaml:"))


@settings(deadline=None, max_examples=150)
@given(st.sampled_from(sorted(path for path in all_keys() if "[]" not in path)), values)
def test_any_value_for_any_key_is_taken_or_refused_at_its_place(path, value):
    text = json.dumps(value).replace("$", "$$")
    for part in reversed(path.split(".")):
        text = f"{{{json.dumps(part)}: {text}}}"
    Path("under.yaml").write_text("version: 1\nname: a\nmodel: {source: /m}\n", encoding="utf-8")
    Path("over.yaml").write_text("extends: [under.yaml, r.yaml]\n", encoding="utf-8")
    for problem in outcome(text, "over.yaml"):
        assert path in problem or "r.yaml" in problem
