"""Token events as text, choice by choice."""

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


def test_usage_counts_a_prompt_once_and_every_choice():
    usage = Usage()
    for index in range(2):
        choice = assembler()
        for done in range(1, 4):
            one = event([65], index=index, done=done, cached=5)
            usage.add(one, choice.push(one))
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (7, 5, 6)
