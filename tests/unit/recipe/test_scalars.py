"""How YAML scalars are typed, and what the numeric keys make of them."""

import math

import pytest

from anychip.recipe import load
from anychip.recipe.scalars import is_text, join_halves, resolve
from anychip_sdk.errors import RecipeInvalid


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1e3", 1000.0),
        ("1.0e-3", 0.001),
        (".9", 0.9),
        ("0.9", 0.9),
        ("1.", 1.0),
        ("1_000", "1_000"),
        ("010", "010"),
        ("0x10", 16),
        ("0o10", 8),
        ("12:30", "12:30"),
        (".inf", math.inf),
        ("-.inf", -math.inf),
        ("true", True),
        ("False", False),
        ("yes", "yes"),
        ("off", "off"),
        ("", None),
        ("~", None),
        ("null", None),
        ("none", "none"),
        ("+7", 7),
        ("-7", -7),
        ("0", 0),
        ("1" * 5000, "1" * 5000),
        ("2024-01-01", "2024-01-01"),
        ("=", "="),
    ],
)
def test_scalars_follow_the_core_schema(text, value):
    assert resolve(text) == value
    assert type(resolve(text)) is type(value)


def test_surrogate_pairs_become_characters_as_in_json():
    assert join_halves("<\ud83d\ude00>") == "<\U0001f600>"
    assert join_halves("plain \U0001f600") == "plain \U0001f600"


@pytest.mark.parametrize("text", ["\ud83d", "\ude00\ud83d", "a\ud83db"])
def test_half_a_surrogate_pair_is_no_text(text):
    assert not is_text(text)
    with pytest.raises(ValueError, match="utf-16"):
        join_halves(text)


def test_half_a_surrogate_pair_in_a_recipe_is_refused_at_its_place(tmp_path):
    file = tmp_path / "r.yaml"
    file.write_text('version: 1\nname: a\nmodel: {source: "/m\\ud800"}\n', encoding="utf-8")
    with pytest.raises(RecipeInvalid, match=r"r\.yaml:3:17  half a surrogate pair"):
        load(file, env={})


def test_nan_is_a_float():
    assert math.isnan(resolve(".nan"))


def fraction(tmp_path, text):
    file = tmp_path / "r.yaml"
    file.write_text(
        f"version: 1\nname: a\nmodel: {{source: /m}}\nmemory:\n  static_fraction: {text}\n", encoding="utf-8"
    )
    return load(file, env={}).recipe.memory.static_fraction


@pytest.mark.parametrize(("text", "value"), [("1e-3", 0.001), ("1.0e-3", 0.001), (".9", 0.9), ("0.9", 0.9), ("1", 1.0)])
def test_numbers_are_numbers(tmp_path, text, value):
    assert fraction(tmp_path, text) == value


@pytest.mark.parametrize(
    "text", ['"0.9"', "1e3", "1_000", "010", "0x10", "12:30", ".inf", "-.inf", ".nan", "1e999", "true", "[0.9]"]
)
def test_what_is_no_fraction_is_refused(tmp_path, text):
    with pytest.raises(RecipeInvalid, match=r"r\.yaml:5:20  memory\.static_fraction: found"):
        fraction(tmp_path, text)
