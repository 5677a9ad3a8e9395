"""Laws of laying one recipe over another."""

from hypothesis import given
from hypothesis import strategies as st

from anychip.recipe.errors import Problems
from anychip.recipe.merge import drop_nulls, merge
from anychip.recipe.nodes import Entry, Items, Scalar, Table
from anychip.recipe.origins import Origin
from anychip.recipe.overrides import sets_tree

HERE = Origin("file", "x", 1, 1)

values = st.none() | st.booleans() | st.integers(0, 3) | st.lists(st.integers(0, 3), max_size=2)
trees = st.recursive(values, lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3), max_leaves=8)
tables = st.dictionaries(st.sampled_from("abc"), trees, max_size=3)


def node(value):
    if isinstance(value, dict):
        return Table({key: Entry(HERE, node(item)) for key, item in value.items()}, HERE)
    if isinstance(value, list):
        return Items(tuple(node(item) for item in value), HERE)
    return Scalar(value, HERE, str(value))


def plain(tree):
    if isinstance(tree, Table):
        return {key: plain(entry.node) for key, entry in tree.entries.items()}
    return [plain(item) for item in tree.items] if isinstance(tree, Items) else tree.value


@given(tables, tables, tables)
def test_merging_is_associative(a, b, c):
    left = merge(merge(node(a), node(b)), node(c))
    right = merge(node(a), merge(node(b), node(c)))
    assert plain(left) == plain(right)


@given(tables)
def test_merging_is_idempotent(a):
    assert plain(merge(node(a), node(a))) == a


@given(tables)
def test_an_empty_mapping_changes_nothing(a):
    assert plain(merge(node(a), node({}))) == a == plain(merge(node({}), node(a)))


@given(tables, tables)
def test_every_value_is_one_of_the_two_and_the_later_one_where_both_have_it(a, b):
    merged = plain(merge(node(a), node(b)))
    assert set(merged) == set(a) | set(b)
    for key, value in merged.items():
        if key not in b:
            assert value == a[key]
        elif not (isinstance(a.get(key), dict) and isinstance(b[key], dict)):
            assert value == b[key]


@given(tables)
def test_no_null_is_left_below_a_mapping(a):
    def nulls(value):
        return isinstance(value, dict) and any(item is None or nulls(item) for item in value.values())

    assert not nulls(plain(drop_nulls(node(a))))


def test_a_mapping_after_a_null_does_not_see_what_was_before_it():
    merged = merge(merge(node({"a": {"p": 1}}), node({"a": None})), node({"a": {"q": 2}}))
    assert plain(merged) == {"a": {"q": 2}}


@given(st.dictionaries(st.sampled_from(["server.port", "memory.page_size", "backend.threads"]), st.integers(1, 9)))
def test_sets_say_what_they_say_in_any_order(wanted):
    found = Problems()
    assignments = [f"{key}={value}" for key, value in wanted.items()]
    tree = plain(sets_tree(assignments, found))
    assert tree == plain(sets_tree(assignments[::-1], found))
    assert len(found) == 0
    for key, value in wanted.items():
        section, name = key.split(".")
        assert tree[section][name] == value
