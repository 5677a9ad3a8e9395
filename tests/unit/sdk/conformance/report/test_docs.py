"""docs/conformance.md is what the requirements say."""

from pathlib import Path

from anychip_sdk.conformance.mutants import load_mutants
from anychip_sdk.conformance.report.docs import markdown
from anychip_sdk.conformance.requirements import REQUIREMENTS
from anychip_sdk.conformance.results import STATUSES

PAGE = Path(__file__).parents[5] / "docs" / "conformance.md"


def test_the_page_is_up_to_date():
    same = PAGE.read_text(encoding="utf-8") == markdown()
    assert same, "run: python -m anychip_sdk.conformance.report.docs > docs/conformance.md"


def test_the_page_names_every_requirement_status_and_mutant():
    text = markdown()
    assert all(f"**{rule.id}** ({rule.force}" in text and rule.text in text for rule in REQUIREMENTS.values())
    assert all(f"| `{status}` |" in text for status in STATUSES)
    assert all(f"| {name} |" in text for name in load_mutants())
