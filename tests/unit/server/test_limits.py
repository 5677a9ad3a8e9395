"""What a request may ask for is bounded by server.limits, and each refusal names its limit and its value."""

import asyncio
import json
import threading

import pytest

from anychip.recipe.limits import LimitsSection
from anychip.server.openai import chat
from anychip.server.openai.chat import template_message
from support.local_client import Asker

SMALL = LimitsSection(
    body_bytes=400_000,
    body_values=20_000,
    body_keys=5000,
    object_keys=20,
    messages=3,
    prompts=3,
    choices_per_prompt=4,
    choices=6,
    logit_bias_entries=5,
    stop_strings=2,
    stop_characters=10,
    stop_token_ids=3,
    tokenize_characters=50,
    errors=3,
    error_characters=100,
)
ASKER = Asker(limits=SMALL)
USER = {"role": "user", "content": "hi"}

BEYOND = [
    ("/v1/completions", {"prompt": "x" * 400_000}, "body_bytes"),
    ("/v1/completions", {"prompt": [1] * 20_001}, "body_values"),
    ("/v1/chat/completions", {"messages": [USER], "metadata": [{"a": "long enough"}] * 4000}, "body_keys"),
    ("/v1/chat/completions", {"messages": [USER], "metadata": dict.fromkeys(map(str, range(30)))}, "object_keys"),
    ("/v1/chat/completions", {"messages": [{**USER, **dict.fromkeys(map(str, range(30)), 1)}]}, "object_keys"),
    ("/v1/chat/completions", {"messages": [USER] * 4}, "messages"),
    ("/v1/completions", {"prompt": ["a"] * 4}, "prompts"),
    ("/v1/completions", {"prompt": [[1]] * 4}, "prompts"),
    ("/generate", {"text": ["a"] * 4}, "prompts"),
    ("/v1/completions", {"prompt": "a", "n": 5}, "choices_per_prompt"),
    ("/v1/completions", {"prompt": "a", "n": 10**30}, "choices_per_prompt"),
    ("/v1/completions", {"prompt": "a", "n": 5.0}, "choices_per_prompt"),
    ("/v1/completions", {"prompt": "a", "n": 100000.0}, "choices_per_prompt"),
    ("/v1/completions", {"prompt": "a", "n": 1e300}, "choices_per_prompt"),
    ("/v1/chat/completions", {"messages": [USER], "n": 1e5}, "choices_per_prompt"),
    ("/generate", {"text": "a", "sampling_params": {"n": 100000.0}}, "choices_per_prompt"),
    ("/v1/completions", {"prompt": ["a", "b"], "n": 4}, "choices"),
    ("/v1/completions", {"prompt": ["a", "b"], "n": 4.0}, "choices"),
    ("/v1/completions", {"prompt": "a", "logit_bias": dict.fromkeys("123456", 1)}, "logit_bias_entries"),
    ("/generate", {"text": "a", "sampling_params": {"logit_bias": dict.fromkeys("123456", 1)}}, "logit_bias_entries"),
    ("/v1/completions", {"prompt": "a", "stop": ["a", "b", "c"]}, "stop_strings"),
    ("/v1/completions", {"prompt": "a", "stop": "b" * 11}, "stop_characters"),
    ("/v1/completions", {"prompt": "a", "stop_token_ids": [1, 2, 3, 4]}, "stop_token_ids"),
    ("/tokenize", {"prompt": "a" * 51}, "tokenize_characters"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "limit"), BEYOND)
def test_what_exceeds_a_limit_is_refused_with_its_name_and_value(path, body, limit):
    reply = ASKER.post(path, body)
    assert reply.status_code == (413 if limit.startswith("body_") else 400)
    error = reply.json()["error"]
    assert error["code"] == "limit_exceeded"
    assert f"the limit is {getattr(SMALL, limit)} (server.limits.{limit})" in error["message"]


WITHIN = [
    ("/v1/chat/completions", {"messages": [USER] * 3, "stop": ["b" * 10, "c"], "n": 4, "stop_token_ids": [1, 2, 3]}),
    ("/v1/completions", {"prompt": ["a", "b", "c"], "n": 2, "logit_bias": dict.fromkeys("12345", 1)}),
    ("/v1/completions", {"prompt": [1] * 90}),
    ("/generate", {"input_ids": [1] * 90, "sampling_params": {"logit_bias": dict.fromkeys("12345", 1)}}),
    ("/tokenize", {"prompt": "a" * 50}),
]


@pytest.mark.parametrize(("path", "body"), WITHIN)
def test_what_reaches_a_limit_passes(path, body):
    assert ASKER.post(path, body).status_code == 200


def test_commas_and_brackets_in_texts_are_no_values():
    text = 'a, "b": [{\\' * 20_000
    reply = Asker(limits=SMALL, context_length=10**6).complete(text, max_tokens=1)
    assert reply.status_code == 200, reply.text


def test_mistakes_beyond_the_limit_are_counted_and_long_ones_cut():
    body = {"prompt": "a", "n": 0, "top_p": 3, "min_p": 3, "seed": "x", "temperature": 9}
    message = ASKER.post("/v1/completions", body).json()["error"]["message"]
    assert "and 2 more (server.limits.errors)" in message
    chat = {"messages": [{**USER, "x" * 100_000: 1}]}
    assert len(ASKER.post("/v1/chat/completions", chat).content) < 1000


def test_wrong_keys_by_the_thousand_cost_a_short_reply():
    asker = Asker()
    for entries in (1024, 40_000):
        reply = asker.complete(logit_bias={f"x{i}": "y" for i in range(entries)})
        assert reply.status_code == 400
        assert len(reply.content) < 20_000


@pytest.mark.parametrize("field", ["x" * 5_000_000, "temprature" + "e" * 1000])
def test_a_long_unknown_name_is_refused_without_a_search_for_the_one_meant(field):
    reply = Asker().complete(**{field: 1})
    assert reply.status_code == 400
    assert len(reply.content) < 1000


@pytest.mark.parametrize("digits", [400, 4000])
@pytest.mark.parametrize(
    "field", ["top_k", "max_tokens", "min_tokens", "n", "seed", "temperature", "top_p", "presence_penalty"]
)
def test_numbers_of_many_digits_are_no_internal_error(field, digits):
    body = f'{{"prompt": "a", "{field}": 1{"0" * digits}}}'.encode()
    reply = Asker().ask("POST", "/v1/completions", content=body, headers={"content-type": "application/json"})
    assert reply.status_code == (200 if field in {"top_k", "max_tokens"} else 400), reply.text
    assert len(reply.content) < 5000


@pytest.mark.parametrize(
    "body",
    ['{"prompt": [1%s]}', '{"prompt": "a", "stop_token_ids": [1%s]}', '{"prompt": "a", "logit_bias": {"1": 1%s}}',
     '{"prompt": "a", "logit_bias": {"1%s": 1}}'],
)  # fmt: skip
def test_ids_of_many_digits_are_refused(body):
    content = (body % ("0" * 4000)).encode()
    reply = Asker().ask("POST", "/v1/completions", content=content, headers={"content-type": "application/json"})
    assert reply.status_code == 400
    assert len(reply.content) < 2000


def test_a_large_top_k_is_the_whole_vocabulary():
    asker = Asker()
    asker.complete(top_k=10**400)
    assert asker.core.added[0].params.top_k == asker.client.model.vocab_size


class Watched:
    """A tokenizer that notes in which threads it works."""

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer
        self.threads = []

    def __getattr__(self, name):
        return getattr(self._tokenizer, name)

    def encode(self, text, add_special=True):
        self.threads.append(threading.current_thread())
        return self._tokenizer.encode(text, add_special)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "x" * 90_000}),
        ("/v1/completions", {"prompt": ["x" * 1000] * 90}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 1000}] * 90}),
        ("/v1/chat/completions", {"messages": [{**USER, "name": "x" * 90_000}, USER]}),
        ("/tokenize", {"prompt": "x" * 90_000}),
    ],
)
def test_long_texts_are_tokenised_off_the_event_loop(path, body):
    asker = Asker(context_length=10**6)
    watched = asker.service.tokenizer = Watched(asker.tokenizer)
    assert asker.post(path, {**body, **({} if path == "/tokenize" else {"max_tokens": 1})}).status_code == 200
    is_short = path.startswith("/v1/chat") and "name" in body["messages"][0]
    assert watched.threads
    assert is_short or all(thread is not threading.main_thread() for thread in watched.threads)


def test_a_prompt_that_cannot_fit_is_refused_before_it_is_tokenised():
    asker = Asker()
    watched = asker.service.tokenizer = Watched(asker.tokenizer)
    for body in ({"prompt": "x" * 1_000_000}, {"prompt": ["hi", "x" * 1_000_000]}):
        reply = asker.post("/v1/completions", body)
        assert reply.json()["error"]["code"] == "context_length_exceeded"
        assert "at least 1000000 tokens" in reply.text
    assert len(watched.threads) <= 1


def test_prompts_behind_one_that_does_not_fit_are_not_tokenised():
    asker = Asker()
    watched = asker.service.tokenizer = Watched(asker.tokenizer)
    watched.tokens_at_least = lambda _text: 0
    reply = asker.post("/v1/completions", {"prompt": ["hi", "x" * 200, *["y" * 200] * 90]})
    assert reply.json()["error"]["code"] == "context_length_exceeded"
    assert len(watched.threads) == 2


def test_many_messages_are_prepared_off_the_event_loop(monkeypatch):
    threads = []

    def noted(message, index):
        threads.append(threading.current_thread())
        return template_message(message, index)

    monkeypatch.setattr(chat, "template_message", noted)
    reply = Asker(context_length=10**6).post("/v1/chat/completions", {"messages": [USER] * 1000, "max_tokens": 1})
    assert reply.status_code == 200
    assert len(threads) == 1000
    assert threading.main_thread() not in threads


def test_the_loop_runs_on_while_a_large_body_is_read():
    asker = Asker(context_length=10**6)

    async def beside():
        turns = 0
        body = json.dumps({"prompt": [1] * 200_000, "max_tokens": 1})
        asked = asyncio.create_task(
            asker._ask("POST", "/v1/completions", {"content": body, "headers": {"content-type": "application/json"}})
        )
        while not asked.done():
            await asyncio.sleep(0)
            turns += 1
        return turns, asked.result().status_code

    turns, status = asyncio.run(beside())
    assert status == 200
    assert turns > 5
