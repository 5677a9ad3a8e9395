"""Stop strings in text that arrives in pieces."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anychip.text.stop import StopMatcher


def run(stops, pieces):
    matcher = StopMatcher(stops)
    shown = ""
    for piece in pieces:
        match = matcher.push(piece)
        shown += match.text
        if match.stop is not None:
            return shown, match.stop
    return shown + matcher.flush(), None


def test_a_stop_that_spans_pieces_shows_none_of_itself():
    assert run(["own fox"], ["The quick br", "own", " fox", " jumps"]) == ("The quick br", "own fox")


def test_text_that_only_began_like_a_stop_is_shown_in_the_end():
    assert run(["own fox"], ["br", "own", " cow", " own f"]) == ("brown cow own f", None)


def test_only_the_possible_start_of_a_stop_is_held_back():
    matcher = StopMatcher(["stop"])
    assert matcher.push("a st").text == "a "
    assert matcher.push("a").text == "sta"


def test_an_empty_stop_is_refused():
    with pytest.raises(ValueError, match="empty"):
        StopMatcher(["x", ""])


def test_without_stops_text_passes():
    assert run([], ["a", "", "b"]) == ("ab", None)


@given(
    st.text("abc", max_size=20),
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
    st.lists(st.integers(0, 20), max_size=6),
)
def test_the_result_does_not_depend_on_where_the_text_is_cut(text, stops, cuts):
    marks = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[start:end] for start, end in pairwise(marks)]
    assert run(stops, pieces) == run(stops, list(text))


@given(st.text("ab", max_size=12), st.text("ab", min_size=1, max_size=3))
def test_one_stop_ends_the_text_at_its_first_place(text, stop):
    before, found, _ = text.partition(stop)
    assert run([stop], list(text)) == (before, found or None)
