"""What goes out, and what a stream says, however its bytes were cut."""

import json

import pytest

from anychip.bench.prompts import Prompt
from anychip.bench.wire import Api, Chunk, read_answer, request_body

PROMPT = Prompt((5, 6, 7), 4)
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}


def event(value):
    return b"data: " + json.dumps(value).encode() + b"\n\n"


TEXT = event({"choices": [{"text": "x"}], "usage": None})
END = event({"choices": [], "usage": USAGE})
DONE = b"data: [DONE]\n\n"


def test_a_completion_is_greedy_streamed_and_of_exact_length():
    body = request_body(Api.completions, "m", PROMPT)
    assert (body["model"], body["prompt"], body["max_tokens"], body["temperature"]) == ("m", [5, 6, 7], 4, 0)
    assert (body["ignore_eos"], body["stream"], body["stream_options"]) == (True, True, {"include_usage": True})


def test_a_generation_is_too():
    body = request_body(Api.generate, "m", PROMPT)
    assert body["input_ids"] == [5, 6, 7]
    assert body["sampling_params"] == {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True}
    assert body["stream"] is True


def test_events_of_tokens_are_timed_and_counts_come_from_usage():
    answer = read_answer(Api.completions, [Chunk(1.0, TEXT), Chunk(2.0, TEXT), Chunk(2.5, END + DONE)])
    assert answer == ((1.0, 2.0), 2, 3, 1, "")


def test_an_event_cut_in_two_counts_when_its_end_comes():
    cut = [Chunk(1.0, TEXT[:9]), Chunk(2.0, TEXT[9:] + TEXT), Chunk(3.0, END[:5]), Chunk(4.0, END[5:])]
    assert read_answer(Api.completions, cut).event_s == (2.0, 2.0)


def test_lines_with_carriage_returns_are_lines():
    assert read_answer(Api.completions, [Chunk(1.0, (TEXT + END).replace(b"\n", b"\r\n"))]).error == ""


def test_counts_of_a_generation_are_those_of_its_last_event():
    metas = [{"prompt_tokens": 3, "completion_tokens": n, "cached_tokens": 2} for n in (1, 3)]
    chunks = [Chunk(float(n), event({"text": "x", "meta_info": meta})) for n, meta in enumerate(metas)]
    assert read_answer(Api.generate, chunks) == ((0.0, 1.0), 3, 3, 2, "")


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (TEXT + event({"error": {"message": "it broke"}}) + DONE, "it broke"),
        (TEXT + DONE, "brought no usage"),
        (DONE, "brought no token"),
        (b"data: {\n\n", "is no JSON"),
        (b"data: 3\n\n", "is no JSON object"),
    ],
)
def test_a_stream_that_does_not_do_is_an_error(data, error):
    assert error in read_answer(Api.completions, [Chunk(0.0, data)]).error
