"""Token events as text, choice by choice."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anychip.engine.outputs import ChoiceAssembler, Usage
from anychip.engine.request import TokenEvent
from anychip.server.reasoning import ReasoningSplitter
from support.stub_text import StubTokenizer


def event(tokens, finish=None, *, index=0, done=0, stop=None, request="r", cached=0):
    return TokenEvent(request, index, list(tokens), finish, stop, 7, cached, done)


def assembler(pieces=(), **options):
    return ChoiceAssembler(StubTokenizer(pieces).stream(), **options)


def ids(*numbers):
    return [257 + number for number in numbers]


def test_a_character_of_several_tokens_appears_once_it_is_whole():
    choice = assembler()
    texts = [choice.push(event([byte])).text for byte in "🦊".encode()]
    assert texts == ["", "", "", "🦊"]


def test_a_text_that_ends_within_a_character_ends_with_one_replacement():
    choice = assembler()
    text = choice.push(event("aé".encode()[:2])).text
    last = choice.push(event([], "length", done=2))
    assert (text, last.text, last.finish_reason) == ("a", "\ufffd", "length")


def test_a_stop_string_ends_the_choice_and_later_events_change_nothing():
    choice = assembler(["The quick br", "own", " fox", " jumps"], stops=["own fox"])
    deltas = [choice.push(event(ids(i), done=i + 1)) for i in range(4)]
    assert "".join(delta.text for delta in deltas) == "The quick br"
    assert [delta.finish_reason for delta in deltas] == [None, None, "stop", None]
    assert deltas[2].stop == "own fox"
    assert deltas[3].completion_tokens == 3
    assert choice.is_finished


def test_tokens_after_a_stop_string_in_the_same_event_are_not_counted():
    choice = assembler(["a", "b", "c"], stops=["b"])
    delta = choice.push(event(ids(0, 1, 2), done=3))
    assert (delta.text, delta.finish_reason, delta.completion_tokens) == ("a", "stop", 2)


def test_held_back_text_comes_at_the_end_without_a_match():
    choice = assembler(["so", "me st"], stops=["stop"])
    assert choice.push(event(ids(0, 1))).text == "some "
    assert choice.push(event([], "stop", stop=256, done=3)).text == "st"


def test_an_incomplete_character_at_the_end_may_still_complete_a_stop_string():
    choice = assembler(stops=["\ufffd"])
    choice.push(event([0xC3]))
    assert choice.push(event([], "length", done=1)).finish_reason == "stop"


def test_a_stop_string_before_min_tokens_does_not_count():
    choice = assembler(["x", "x", "x"], stops=["x"], min_tokens=2)
    deltas = [choice.push(event(ids(i))) for i in range(3)]
    assert "".join(delta.text for delta in deltas) == "xx"
    assert [delta.finish_reason for delta in deltas] == [None, None, "stop"]


def test_the_grouping_of_tokens_does_not_change_text_or_counts():
    pieces = ["<think>", "\n", "hm", "\n</thi", "nk>\n\n", "yes", " sto", "p it"]

    def run(groups):
        choice = assembler(pieces, stops=["stop"], splitter=ReasoningSplitter(is_opened=False))
        deltas = [choice.push(event(ids(*group))) for group in groups]
        return (
            "".join(delta.reasoning for delta in deltas),
            "".join(delta.text for delta in deltas),
            deltas[-1].completion_tokens,
            deltas[-1].reasoning_tokens,
        )

    alone = run([[i] for i in range(8)])
    assert alone == ("hm", "yes ", 8, 4)
    assert run([range(8)]) == run([range(3), range(3, 8)]) == alone


THOUGHT = ["<think>", "Question: ", "hm", "</thi", "nk>", "\n\n", "42 ", "Quest", "ion: ", "more"]


def whole(pieces, groups=None, *, opened=False, split=True, finish="stop", **options):
    """Reasoning, content, finish reason, stop and tokens of a choice that says the pieces, in those groups."""
    splitter = ReasoningSplitter(is_opened=opened) if split else None
    choice = assembler(pieces, splitter=splitter, **options)
    events = [event(ids(*group)) for group in groups or [[i] for i in range(len(pieces))]]
    deltas = [choice.push(one) for one in [*events, event([], finish, done=len(pieces) + 1, stop=256)]]
    ends = [delta for delta in deltas if delta.finish_reason is not None]
    assert len(ends) == 1
    reasoning, content = "".join(delta.reasoning for delta in deltas), "".join(delta.text for delta in deltas)
    return reasoning, content, ends[0].finish_reason, ends[0].stop, ends[0].completion_tokens


@pytest.mark.parametrize("opened", [False, True])
def test_a_stop_string_in_the_thinking_ends_nothing_and_in_the_answer_it_does(opened):
    pieces = THOUGHT[1:] if opened else THOUGHT
    expected = ("Question: hm", "42 ", "stop", "Question:", 8 if opened else 9)
    assert whole(pieces, stops=["Question:"], opened=opened) == expected
    everything = [range(len(pieces))]
    assert whole(pieces, everything, stops=["Question:"], opened=opened) == expected


@pytest.mark.parametrize("stop", ["hm</think>", "</think>", "think>\n\n42", "\n42", "</think>\n\n42 "])
def test_no_stop_string_reaches_over_the_end_of_the_thinking(stop):
    reasoning, content, finish, matched, _ = whole(THOUGHT, stops=[stop])
    assert (reasoning, content, finish, matched) == ("Question: hm", "42 Question: more", "stop", 256)


def test_what_only_looked_like_thinking_is_searched_from_its_beginning():
    assert whole(["<thi", "s> x"], stops=["<this>"])[1:4] == ("", "stop", "<this>")
    assert whole(["<thi"], stops=["<thi"])[1:4] == ("", "stop", "<thi")
    assert whole(["  \n"], stops=["\n"])[1:4] == ("  ", "stop", "\n")


def test_without_a_splitter_everything_is_the_answer():
    assert whole(THOUGHT, stops=["Question:"], split=False)[1:4] == ("<think>", "stop", "Question:")


def test_thinking_without_an_end_is_not_searched_at_all():
    assert whole(["<think>", "Question:", "</th"], stops=["Question:", "</th"], finish="length") == (
        *("Question:</th", "", "length", 256, 4),
    )


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "\n", "ab", "b", "<", "</th", "ink>", "a"]), max_size=8),
    st.lists(st.sampled_from(["ab", "b\n", "<", "</think>", "ba"]), min_size=1, max_size=3, unique=True),
    st.booleans(),
    st.integers(0, 3),
    st.lists(st.integers(1, 7), max_size=4, unique=True),
)
def test_stop_strings_are_those_of_the_answer_however_tokens_are_grouped(pieces, stops, opened, min_tokens, cuts):
    marks = [0, *sorted(cut for cut in cuts if cut < len(pieces)), len(pieces)]
    groups = [range(start, end) for start, end in pairwise(marks)]
    found = whole(pieces, groups, stops=stops, opened=opened, min_tokens=min_tokens)
    assert found == whole(pieces, stops=stops, opened=opened, min_tokens=min_tokens)
    reasoning, content, *_ = found
    full_reasoning, full_content, *_ = whole(pieces, opened=opened)
    assert full_reasoning.startswith(reasoning)
    if min_tokens == 0:
        at = min((full_content.find(stop) for stop in stops if stop in full_content), default=len(full_content))
        assert content == full_content[:at] or any(stop in full_content[at:] for stop in stops)


def test_usage_counts_a_prompt_once_and_every_choice():
    usage = Usage()
    for index in range(2):
        choice = assembler()
        for done in range(1, 4):
            one = event([65], index=index, done=done, cached=5)
            usage.add(one, choice.push(one))
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (7, 5, 6)
