"""Which matrix is held how, by what the recipe says and the file holds. Knows no tensor."""

import pytest

from anychip.weights.schemes import Scheme, choose

STORED_8, STORED_4 = Scheme(8, 32, is_stored=True), Scheme(4, 32, is_stored=True)
STORED_4_MINIMUM = Scheme(4, 32, has_minimum=True, is_stored=True)
ROWS = Scheme(8)


@pytest.mark.parametrize(
    ("quantization", "storages", "expected"),
    [
        ("none", {"Q8_0"}, None),
        ("auto", {"BF16"}, None),
        ("auto", {"BF16", "Q8_0"}, None),
        ("auto", {"Q8_0"}, STORED_8),
        ("auto", {"Q4_0"}, STORED_4),
        ("auto", {"Q4_0", "Q4_1"}, STORED_4_MINIMUM),
        ("auto", {"Q4_0", "Q8_0"}, Scheme(8, 32)),
        ("int8", {"BF16"}, ROWS),
        ("int8", {"Q4_1"}, ROWS),
        ("int8", {"Q8_0"}, STORED_8),
        ("int4", {"F32"}, Scheme(4, 32, has_minimum=True)),
        ("int4", {"Q8_0"}, Scheme(4, 32, has_minimum=True)),
        ("int4-128", {"F32"}, Scheme(4, 128, has_minimum=True)),
        ("int4-128", {"Q4_1"}, STORED_4_MINIMUM),
    ],
)
def test_a_matrix_is_held_as_the_recipe_says(quantization, storages, expected):
    assert choose(quantization, storages, is_head=False) == expected


@pytest.mark.parametrize(
    ("quantization", "storages", "expected"),
    [
        ("none", {"Q8_0"}, None),
        ("auto", {"F16"}, None),
        ("auto", {"Q8_0"}, STORED_8),
        ("auto", {"Q4_1"}, ROWS),
        ("int8", {"BF16"}, ROWS),
        ("int4", {"BF16"}, ROWS),
        ("int4-128", {"Q8_0"}, STORED_8),
    ],
)
def test_logits_have_eight_bits_at_least(quantization, storages, expected):
    assert choose(quantization, storages, is_head=True) == expected


def test_columns_that_a_group_does_not_divide_are_a_problem():
    assert Scheme(4, 128).problem(576) == "576 columns are no multiple of the group of 128"
    assert not Scheme(4, 32).problem(576)
    assert not ROWS.problem(577)


def test_parts_are_named_as_the_ops_arguments():
    names = [(part.name, part.shape) for part in Scheme(4, 32, has_minimum=True).parts(6, 64)]
    assert names == [("weight", (6, 32)), ("scale", (6, 2)), ("minimum", (6, 2))]
    assert [part.shape for part in ROWS.parts(6, 64)] == [(6, 64), (6, 1)]
