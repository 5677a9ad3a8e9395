"""Every broken recipe reports exactly what its file of expected messages says. Knows no recipe's fault."""

import pytest

from support.golden_recipes import CASES, expected_file, outcome


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_a_broken_recipe_reports_exactly_its_problems(case):
    assert outcome(case) == expected_file(case).read_text(encoding="utf-8")


def test_no_golden_recipe_is_valid():
    assert len(CASES) >= 30
    assert not [case.name for case in CASES if outcome(case) == "valid\n"]


def test_eight_mistakes_are_reported_with_eight_lines():
    problems = outcome(CASES[0]).splitlines()
    assert len(problems) == 8
    assert [int(problem.split(":")[1]) for problem in problems] == [2, 4, 5, 7, 8, 10, 11, 13]


def test_secrets_are_in_no_message():
    assert not [case.name for case in CASES if "sk-very-secret" in outcome(case)]
