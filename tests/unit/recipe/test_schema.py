"""The schema, its reference page, its JSON Schema, and the recipes that are shipped."""

import json

import pytest
from pydantic import ValidationError

from anychip.recipe import Recipe, load
from anychip.recipe.conflicts import RULES
from anychip.recipe.export import json_schema, markdown
from anychip.recipe.keys import all_keys
from anychip.recipe.quantities import Seconds
from support.plans import ROOT, SHIPPED


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_recipe_is_valid_and_says_what_it_needs(path):
    place = path.relative_to(ROOT / "recipes")
    assert load(path, env={}).recipe.name == place.with_suffix("").parts[0]
    head = path.read_text(encoding="utf-8").split("version:")[0]
    assert head.startswith(f"# yaml-language-server: $schema={'../' * (len(place.parts) - 1)}recipe.schema.json\n")
    assert "# What: " in head
    assert "# Needs: " in head
    assert f"platform apply recipes/{place.as_posix()}" in head


def test_the_reference_page_is_up_to_date():
    page = (ROOT / "docs" / "recipe-reference.md").read_text(encoding="utf-8")
    assert page == markdown(), "run `platform schema --format markdown > docs/recipe-reference.md`"


def test_the_shipped_json_schema_is_up_to_date():
    shipped = json.loads((ROOT / "recipes" / "recipe.schema.json").read_text(encoding="utf-8"))
    assert shipped == json_schema(), "run `platform schema > recipes/recipe.schema.json`"


def test_every_key_is_described():
    assert [key.path for key in all_keys().values() if not key.description] == []


def test_every_key_is_required_or_has_a_default():
    required = {
        k.path for k in all_keys().values() if k.default is None and not k.is_section and not k.path.endswith("[]")
    }
    assert required == {
        "version",
        "name",
        "model.source",
        "ops.overrides[].op",
        "server.tls.certificate",
        "server.tls.key",
    }


def test_the_json_schema_lets_files_say_what_the_loader_takes():
    schema = json_schema()
    port = schema["$defs"]["ServerSection"]["properties"]["port"]
    assert {"type": "string", "pattern": r"\$\{"} in port["anyOf"]
    assert {"type": "null"} in port["anyOf"]
    assert schema["additionalProperties"] is False
    assert "extends" in schema["properties"]
    assert "required" not in schema


def test_a_conflict_is_an_error_without_a_file_too():
    data = {"version": 1, "name": "a", "model": {"source": "/m", "context_length": 9}, "memory": {"kv_tokens": 8}}
    with pytest.raises(ValidationError, match="9 tokens do not fit"):
        Recipe.model_validate(data)


def test_each_conflict_has_a_name_and_a_golden_recipe():
    assert len(RULES) == len({rule.__name__ for rule in RULES}) == 10


def test_seconds_survive_copying_and_pickling():
    import copy
    import pickle

    half = Seconds(0.5, "500ms")
    for again in (copy.deepcopy(half), pickle.loads(pickle.dumps(half))):
        assert again == 0.5
        assert str(again) == "500ms"
    assert str(Seconds(2.0)) == "2s"
