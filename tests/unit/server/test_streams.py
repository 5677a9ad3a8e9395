"""What a stream brings is what a whole reply brings."""

import pytest

from support.local_client import Asker, events_of
from support.stub_core import StubCore

PIECES = ["The quick br", "own", " fox", " jumps"]


def texts_of(asker, endpoint, n, **fields):
    """Texts and finish reasons of the choices, without a stream and with one."""
    ask = asker.chat if endpoint == "chat" else asker.complete
    whole = ask(n=n, max_tokens=fields.pop("max_tokens", 50), **fields).json()["choices"]
    plain = [(one["message"]["content"] if endpoint == "chat" else one["text"], one["finish_reason"]) for one in whole]
    chunks, done = events_of(ask(n=n, stream=True, max_tokens=50, **fields))
    assert done
    texts, ends = [""] * n, [None] * n
    for chunk in chunks:
        (choice,) = chunk["choices"]
        piece = choice["delta"].get("content", "") if endpoint == "chat" else choice["text"]
        texts[choice["index"]] += piece
        ends[choice["index"]] = choice["finish_reason"] or ends[choice["index"]]
    return plain, list(zip(texts, ends, strict=True))


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("endpoint", ["chat", "completions"])
@pytest.mark.parametrize(
    ("stop", "text"),
    [
        (["own fox"], "The quick br"),
        ("jumps", "The quick brown fox "),
        (["nope"], "".join(PIECES)),
        ([], "".join(PIECES)),
    ],
)
def test_stop_strings_end_the_text_everywhere(endpoint, n, stop, text):
    plain, streamed = texts_of(Asker(PIECES), endpoint, n, stop=stop)
    assert plain == streamed == [(text, "stop")] * n


@pytest.mark.parametrize("text", ["🦊 liška 狐狸", "a\u0301b", "ž" * 9])
@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_characters_split_over_tokens_stay_whole(endpoint, text):
    core = StubCore([[byte] for byte in text.encode()])
    plain, streamed = texts_of(Asker(core=core), endpoint, 1)
    assert plain == streamed == [(text, "stop")]


def test_a_cut_within_a_character_is_the_same_in_both():
    asker = Asker(core=StubCore([[byte] for byte in "aé".encode()]))
    whole = asker.complete(max_tokens=2).json()["choices"][0]
    chunks, _ = events_of(asker.complete(max_tokens=2, stream=True))
    assert whole["text"] == "".join(chunk["choices"][0]["text"] for chunk in chunks) == "a\ufffd"
    assert whole["finish_reason"] == "length"


OPTIONS = [({}, False), ({"stream_options": None}, False), ({"stream_options": {}}, False)]
OPTIONS += [({"stream_options": {"include_usage": asked}}, asked) for asked in (False, True)]


@pytest.mark.parametrize(("fields", "asked"), OPTIONS)
@pytest.mark.parametrize("endpoint", ["chat", "completions"])
@pytest.mark.parametrize("max_tokens", [2, 50])
@pytest.mark.parametrize("n", [1, 2])
def test_usage_comes_only_when_asked_for_in_the_last_chunk(endpoint, fields, asked, max_tokens, n):
    asker = Asker(PIECES)
    ask = asker.chat if endpoint == "chat" else asker.complete
    chunks, done = events_of(ask(stream=True, max_tokens=max_tokens, n=n, **fields))
    assert done
    assert [chunk for chunk in chunks[:-1] if "usage" in chunk] == []
    assert ("usage" in chunks[-1]) == asked
    if asked:
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"]["completion_tokens"] == n * (2 if max_tokens == 2 else 5)


def test_the_role_comes_with_the_first_text_of_each_choice():
    chunks, _ = events_of(Asker(PIECES).chat(stream=True, n=2))
    deltas = [(chunk["choices"][0]["index"], chunk["choices"][0]["delta"]) for chunk in chunks]
    for choice in (0, 1):
        own = [delta for index, delta in deltas if index == choice]
        assert own[0] == {"role": "assistant", "content": PIECES[0]}
        assert all("role" not in delta for delta in own[1:])


def test_a_reply_without_any_text_is_still_whole():
    asker = Asker(core=StubCore([[256]]))
    assert asker.chat().json()["choices"][0]["message"]["content"] == ""
    chunks, done = events_of(asker.chat(stream=True))
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == ["stop"]
    assert done


def test_a_failing_step_ends_the_stream_with_an_error():
    asker = Asker(PIECES, core=StubCore([[257], [258]], endless=True, fail_steps=[3]))
    chunks, done = events_of(asker.complete(stream=True, max_tokens=50))
    assert "step 3 fails" in chunks[-1]["error"]["message"]
    assert not done
    assert asker.complete(max_tokens=1).status_code == 200


def test_a_failing_step_is_a_server_error_without_a_stream():
    asker = Asker(PIECES, core=StubCore([[257]], endless=True, fail_steps=[2]))
    reply = asker.complete(max_tokens=50)
    assert reply.status_code == 500
    assert reply.json()["error"]["type"] == "server_error"


def test_several_prompts_give_their_choices_in_order():
    reply = Asker().complete(prompt=["ab", "cd"], n=2).json()
    assert [(one["index"], one["text"]) for one in reply["choices"]] == [(0, "ab"), (1, "ab"), (2, "cd"), (3, "cd")]
    assert reply["usage"]["prompt_tokens"] == 4


@pytest.mark.parametrize("prompt", [[104, 105], [[104, 105]]])
def test_token_ids_are_prompts_too(prompt):
    assert Asker().complete(prompt=prompt).json()["choices"][0]["text"] == "hi"


def test_generate_streams_cumulative_text():
    reply = Asker(PIECES).post("/generate", {"text": "hi", "stream": True, "rid": "mine"})
    chunks, done = events_of(reply)
    assert done
    assert [chunk["text"] for chunk in chunks] == [
        "The quick br",
        "The quick brown",
        "The quick brown fox",
        "The quick brown fox jumps",
        "The quick brown fox jumps",
    ]
    meta = chunks[-1]["meta_info"]
    assert meta["finish_reason"] == {"type": "stop", "matched": 256}
    assert (meta["id"], meta["prompt_tokens"], meta["completion_tokens"], meta["cached_tokens"]) == ("mine", 2, 5, 1)


def test_generate_answers_lists_with_lists():
    asker = Asker(PIECES)
    one = asker.post("/generate", {"text": ["hi"], "sampling_params": {"max_new_tokens": 2}}).json()
    assert [reply["text"] for reply in one] == ["The quick brown"]
    two = asker.post("/generate", {"input_ids": [[1], [2]], "sampling_params": {"stop": "quick"}}).json()
    assert [reply["text"] for reply in two] == ["The ", "The "]
    assert two[0]["meta_info"]["finish_reason"] == {"type": "stop", "matched": "quick"}
