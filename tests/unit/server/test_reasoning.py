"""Thinking told from the answer."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anychip.server.reasoning import ReasoningSplitter


def split(text, *, opened=False, cuts=()):
    splitter = ReasoningSplitter(is_opened=opened)
    marks = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    parts = [splitter.push(text[start:end]) for start, end in pairwise(marks)]
    parts.append(splitter.finish())
    return "".join(part.reasoning for part in parts), "".join(part.content for part in parts)


@pytest.mark.parametrize(
    ("text", "opened", "expected"),
    [
        ("<think>\nhm\n\n</think>\n\nyes\n", False, ("hm", "yes\n")),
        ("\n <think>hm</think>yes", False, ("hm", "yes")),
        ("hm\n</think>\n\nyes", True, ("hm", "yes")),
        ("just an answer", False, ("", "just an answer")),
        ("  indented", False, ("", "  indented")),
        ("a <think> later", False, ("", "a <think> later")),
        ("<think>\n\n</think>\n\nyes", False, ("", "yes")),
        ("<think>first</think>yes <think>no</think>", False, ("first", "yes <think>no</think>")),
        ("<thi", False, ("", "<thi")),
        ("", True, ("", "")),
    ],
)
def test_texts_are_split(text, opened, expected):
    assert split(text, opened=opened) == expected


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("tail", ["", "\n", "</thi"])
def test_thinking_that_was_cut_off_is_all_reasoning(opened, tail):
    reasoning, content = split(("" if opened else "<think>") + "abc" + tail, opened=opened)
    assert (reasoning, content) == ("abc" + tail.rstrip("\n"), "")


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "\n", "a", "<", "</th", "ink>", " "]), max_size=8),
    st.booleans(),
    st.lists(st.integers(0, 60), max_size=8),
)
def test_the_split_does_not_depend_on_where_the_text_is_cut(parts, opened, cuts):
    text = "".join(parts)
    assert split(text, opened=opened, cuts=cuts) == split(text, opened=opened)
