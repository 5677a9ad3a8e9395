"""The table of families is read off the registry, and the page about it is current."""

from __future__ import annotations

import json

import pytest

from anychip.cli.main import main
from anychip.models.registry import FAMILIES
from anychip.plan import families as families_module
from anychip_sdk.ops import CATALOGUE
from support.sources import ROOT


@pytest.fixture(scope="module", autouse=True)
def read_once():
    """Every family's modules are traced once for all tests."""
    found = families_module.families()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(families_module, "families", lambda: found)
        yield


def test_the_page_about_models_is_current():
    page = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    assert page == families_module.markdown(), "run `platform models --format markdown > docs/models.md`"


def test_every_family_is_told_with_what_it_keeps_and_runs():
    found = families_module.families()
    assert [one.name for one in found] == [family.model_type for family in FAMILIES]
    assert all(one.summary.endswith(".") and one.states for one in found)
    assert all(set(one.ops) <= set(CATALOGUE) for one in found)
    llama = found[0]
    assert (llama.architectures, llama.gguf, llama.states) == (("LlamaForCausalLM",), "llama", ("kv per token",))
    assert {"rope", "paged_attention", "lm_head"} <= set(llama.ops)


def test_the_verb_lists_every_family_as_text_and_as_json(capsys):
    assert main(["models"]) == 0
    text = capsys.readouterr().out
    assert main(["models", "--output", "json"]) == 0
    listed = json.loads(capsys.readouterr().out)["families"]
    assert [one["name"] for one in listed] == [family.model_type for family in FAMILIES]
    assert all(name in text for one in listed for name in (one["name"], *one["architectures"]))
