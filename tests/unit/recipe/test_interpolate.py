"""Variables in values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anychip.recipe.errors import Problems
from anychip.recipe.interpolate import InterpolationError, interpolate_text, interpolate_tree
from anychip.recipe.nodes import Scalar
from anychip.recipe.origins import Origin

HERE = Origin("file", "x", 1, 1)
names = st.from_regex(r"[A-Z_][A-Z0-9_]{0,8}", fullmatch=True)


def text_of(text, env):
    return interpolate_text(text, env).text


@given(st.text().filter(lambda text: "$" not in text), st.dictionaries(names, st.text()))
def test_text_without_a_dollar_stays(text, env):
    assert text_of(text, env) == text


@given(st.text())
def test_doubled_dollars_are_dollars(text):
    assert text_of(text.replace("$", "$$"), {}) == text


@given(names, st.text())
def test_a_variable_is_its_value_and_the_value_is_not_read_again(name, value):
    assert text_of(f"<${{{name}}}>", {name: value}) == f"<{value}>"


@given(names, st.text().filter(lambda text: not set(text) & set("{}")))
def test_a_default_stands_in_for_unset_and_for_empty(name, default):
    assert text_of(f"${{{name}:-{default}}}", {}) == default
    assert text_of(f"${{{name}:-{default}}}", {name: ""}) == default
    assert text_of(f"${{{name}:-{default}}}", {name: "set"}) == "set"


def test_bytes_that_are_no_utf8_in_a_variable_are_an_error_that_names_it():
    with pytest.raises(InterpolationError, match="X is not UTF-8"):
        interpolate_text("/m/${X:-a}", {"X": b"\xff".decode("utf-8", "surrogateescape")})


@given(names)
def test_an_unset_variable_is_an_error_that_names_it(name):
    for text in (f"${{{name}}}", f"${{{name}:?}}", f"${{{name}:?why}}"):
        with pytest.raises(InterpolationError, match=name):
            interpolate_text(text, {})


@pytest.mark.parametrize("text", ["$", "$A", "${", "${}", "${a b}", "${1A}", "${A:=b}", "a$", "$(A)", "${A:-${B}}"])
def test_other_dollars_are_errors_that_say_the_forms(text):
    with pytest.raises(InterpolationError, match="starts no variable"):
        interpolate_text(text, {"A": "x", "B": "y"})


@pytest.mark.parametrize(
    ("text", "is_plain", "value"),
    [
        ("${X:-8000}", True, 8000),
        ("${X:-8000}", False, 8000),
        ("${X:-true}", True, True),
        ("${X:-1e-3}", True, 0.001),
        ("${X:-null}", True, None),
        ("${X:-null}", False, "null"),
        ("${X:-}", True, ""),
        ("a${X:-1}", True, "a1"),
        ("$$", True, "$"),
    ],
)
def test_the_result_is_typed_again(text, is_plain, value):
    node, broken = interpolate_tree(Scalar(text, HERE, text, is_plain), {}, Problems())
    assert isinstance(node, Scalar)
    assert (node.value, broken) == (value, ())


def test_origins_name_the_variables():
    node, _ = interpolate_tree(Scalar("${A}${B:-x}", HERE, "${A}${B:-x}", True), {"A": "1"}, Problems())
    assert str(node.origin) == "x:1:1 through $A, $B"
