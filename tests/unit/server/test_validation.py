"""What is wrong with a request is said by name, before anything runs."""

import json

import pytest

from anychip.engine.step_plan import Sampling
from anychip.recipe.limits import LimitsSection
from support.local_client import Asker
from support.stub_text import VOCAB, StubTemplate

ASKER = Asker()
KEYS = ("reasoning", "reasoning_content")


def refused(reply, param, status=400):
    assert reply.status_code == status, reply.text
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param, error
    return error


WRONG = [
    ("temperature", -0.1),
    ("temperature", 2.1),
    ("temperature", "1"),
    ("temperature", True),
    ("top_p", 0),
    ("top_p", 1.1),
    ("top_k", -2),
    ("top_k", 1.5),
    ("min_p", -1),
    ("n", 0),
    ("n", 129),
    ("n", "2"),
    ("seed", 2**63),
    ("seed", 1.5),
    ("stop", ""),
    ("stop", [""]),
    ("stop", ["x", ""]),
    ("stop", 5),
    ("stop", ["x"] * 17),
    ("stop", "x" * 1025),
    ("max_tokens", 0),
    ("max_tokens", -2),
    ("max_tokens", -1.5),
    ("max_tokens", "5"),
    ("max_tokens", 1.5),
    ("min_tokens", -1),
    ("min_tokens", 1000),
    ("presence_penalty", 3),
    ("frequency_penalty", -3),
    ("repetition_penalty", 0),
    ("stream", "true"),
    ("stream", 1),
    ("ignore_eos", "yes"),
    ("stop_token_ids", [VOCAB]),
    ("logit_bias", {str(VOCAB): 5}),
    ("logit_bias", {"-1": 5}),
    ("logit_bias", {"AI": -100}),
    ("logit_bias", {"٣": 1}),
    ("logit_bias", {"5": 101}),
    ("logit_bias", {"5": 1e9}),
    ("stream_options", {"include_usage": True}),
]


@pytest.mark.parametrize(("param", "value"), WRONG)
@pytest.mark.parametrize("endpoint", ["chat", "complete"])
def test_wrong_values_are_refused_by_name(endpoint, param, value):
    refused(getattr(ASKER, endpoint)(**{param: value}), param)


@pytest.mark.parametrize("ids", [[-1], ["5"], [1.5]])
def test_wrong_items_are_refused_with_their_place(ids):
    refused(ASKER.chat(stop_token_ids=ids), "stop_token_ids[0]")


RIGHT = [
    {"temperature": 0},
    {"temperature": 1e-9},
    {"temperature": 1e-4},
    {"temperature": 2},
    {"top_p": 1e-9},
    {"top_k": 0},
    {"top_k": -1},
    {"top_k": 10**9},
    {"seed": -5},
    {"stop": []},
    {"stop": None},
    {"max_tokens": None},
    {"max_tokens": 5.0, "n": 1.0, "seed": 7.0, "top_k": 3.0, "min_tokens": 2.0, "stop_token_ids": [4.0]},
    {"temperature": None, "n": None, "stream": None, "logit_bias": {"5": None}, "ignore_eos": None},
    {"stream": True, "stream_options": {"include_usage": None, "continuous_usage_stats": False}},
    {"request_id": "mine", "rid": "mine", "guided_json": None, "nobody_knows": None},
    {"max_tokens": 10**30},
    {"logit_bias": {"5": -100, "6": 100}},
    {"logit_bias": {}},
    {"model": "stub"},
    {"user": "u", "metadata": {"a": "b"}, "service_tier": "auto", "store": False},
    {"response_format": {"type": "text"}, "logprobs": None},
]


@pytest.mark.parametrize("fields", RIGHT)
@pytest.mark.parametrize("endpoint", ["chat", "complete"])
def test_right_values_pass(endpoint, fields):
    reply = getattr(ASKER, endpoint)(**fields)
    assert reply.status_code == 200, reply.text


UNSUPPORTED = [
    ("chat", "tools", [{"type": "function"}]),
    ("chat", "tool_choice", "required"),
    ("chat", "functions", [{}]),
    ("chat", "response_format", {"type": "json_object"}),
    ("chat", "logprobs", True),
    ("chat", "top_logprobs", 2),
    ("chat", "modalities", ["audio"]),
    ("chat", "audio", {}),
    ("chat", "reasoning_effort", "high"),
    ("chat", "store", True),
    ("complete", "logprobs", 0),
    ("complete", "echo", True),
    ("complete", "suffix", "x"),
    ("complete", "best_of", 3),
    ("complete", "store", 0),
    ("chat", "include_reasoning", False),
    ("chat", "guided_json", {"type": "object"}),
    ("chat", "response_format", {"type": "json_schema", "json_schema": {}}),
    ("complete", "guided_choice", ["a"]),
    ("complete", "best_of", True),
]


@pytest.mark.parametrize(("endpoint", "param", "value"), UNSUPPORTED)
def test_parameters_not_offered_are_refused_by_name(endpoint, param, value):
    error = refused(getattr(ASKER, endpoint)(**{param: value}), param)
    assert error["code"] == "unsupported_parameter"


NEUTRAL = [
    ("chat", {"tools": None, "tool_choice": "auto", "functions": [], "modalities": ["text"], "logprobs": False}),
    ("chat", {"include_reasoning": True, "verbosity": "medium", "priority": 0.0, "best_of": 1.0, "length_penalty": 1}),
    ("chat", {"response_format": {"type": "text", "json_schema": None}, "guided_choice": [], "vllm_xargs": {}}),
    ("complete", {"echo": False, "suffix": None, "best_of": 1, "logprobs": None}),
]


@pytest.mark.parametrize(("endpoint", "fields"), NEUTRAL)
def test_their_neutral_values_pass(endpoint, fields):
    assert getattr(ASKER, endpoint)(**fields).status_code == 200


def test_unknown_parameters_are_refused_with_the_nearest_name():
    error = refused(ASKER.chat(temprature=1), "temprature")
    assert "Did you mean temperature?" in error["message"]
    refused(ASKER.chat(zzz=0), "zzz")
    assert "Did you mean" not in refused(ASKER.chat(**{"temperature" * 10: 1}), ("temperature" * 10)[:80])["message"]


def test_all_wrong_fields_are_named_at_once():
    message = refused(ASKER.chat(n=0, top_p=3, max_tokens="5"), "n")["message"]
    assert all(name in message for name in ("n:", "top_p:", "max_tokens:"))


def test_unknown_and_wrong_fields_of_every_depth_are_named_at_once():
    message = {"role": "user", "content": "x", "colour": 1, "tool_calls": [{}]}
    reply = ASKER.post("/v1/chat/completions", {"messages": [message], "temprature": 1, "top_p": 3})
    error = refused(reply, "messages[0].colour")
    assert error["code"] == "unknown_parameter"
    for name in ("messages[0].colour:", "messages[0].tool_calls:", "temprature:", "top_p:"):
        assert name in error["message"]


def test_an_unknown_model_is_not_found_and_the_served_ones_are_listed():
    asker = Asker(aliases=("also",))
    error = refused(asker.chat(model="gpt-9"), "model", 404)
    assert error["code"] == "model_not_found"
    assert "stub, also" in error["message"]
    assert asker.chat(model="also").json()["model"] == "stub"


CONTENT = [
    ({"role": "user", "content": None}, "messages[0].content"),
    ({"role": "user", "content": [{"type": "image_url"}]}, "messages[0].content[0].type"),
    ({"role": "user", "content": [{"type": "text", "text": 5}]}, "messages[0].content[0].text"),
    ({"role": "user", "content": 5}, "messages[0].content"),
    ({"role": "tool", "content": "x"}, "messages[0].role"),
    ({"content": "x"}, "messages[0].role"),
    ({"role": "user", "content": "x", "colour": "red"}, "messages[0].colour"),
    ({"role": "assistant", "content": "x", "tool_calls": [{}]}, "messages[0].tool_calls"),
    ("hi", "messages[0]"),
]


@pytest.mark.parametrize(("message", "param"), CONTENT)
def test_malformed_messages_are_refused_with_their_place(message, param):
    refused(ASKER.post("/v1/chat/completions", {"messages": [message]}), param)


SENT_BACK = {
    "role": "assistant",
    "content": "4",
    "id": "msg_1",
    "annotations": [],
    "refusal": None,
    "tool_calls": None,
    "function_call": None,
    "audio": None,
    "reasoning": None,
    "reasoning_content": None,
    "prefix": False,
    "name": None,
    "nobody_knows": None,
}


def test_an_answer_may_be_sent_back_as_clients_keep_it():
    body = {"messages": [{"role": "user", "content": "2+2"}, SENT_BACK, {"role": "user", "content": "why?"}]}
    assert ASKER.post("/v1/chat/completions", body).status_code == 200


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("refusal", "no"),
        ("tool_calls", [{"id": "1"}]),
        ("function_call", {"name": "f"}),
        ("audio", {"id": "a"}),
        ("tool_call_id", "1"),
        ("prefix", True),
        ("cache_control", {"type": "ephemeral"}),
    ],
)
def test_what_a_message_asks_for_in_vain_is_refused_with_its_place(field, value):
    body = {"messages": [{"role": "user", "content": "2+2"}, {**SENT_BACK, field: value}]}
    error = refused(ASKER.post("/v1/chat/completions", body), f"messages[1].{field}")
    assert error["code"] == "unsupported_parameter"


class Seen(StubTemplate):
    def render(self, messages, **variables):
        self.messages = messages
        return super().render(messages, **variables)


@pytest.mark.parametrize("fields", [{"reasoning": "hm"}, {"reasoning_content": "hm"}, dict.fromkeys(KEYS, "hm")])
def test_earlier_thinking_reaches_the_template_by_either_name(fields):
    asker = Asker(template=Seen())
    earlier = {"role": "assistant", "content": "4", **fields}
    asker.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "2+2"}, earlier]})
    assert asker.template.messages[1]["reasoning_content"] == "hm"


def test_two_names_of_earlier_thinking_must_agree():
    message = {"role": "assistant", "content": "4", "reasoning": "a", "reasoning_content": "b"}
    refused(ASKER.post("/v1/chat/completions", {"messages": [message]}), "messages[0].reasoning")


@pytest.mark.parametrize("messages", [[], None, "hi"])
def test_messages_must_be_a_list_with_something_in_it(messages):
    refused(ASKER.post("/v1/chat/completions", {"messages": messages}), "messages")


@pytest.mark.parametrize("content", ["hi", [{"type": "text", "text": "hi"}]])
def test_a_text_and_one_text_part_are_the_same_prompt(content):
    asker = Asker()
    asker.chat(content)
    assert bytes(asker.core.added[0].prompt_ids) == b"<user>hi<assistant>"


@pytest.mark.parametrize("message", [{"role": "assistant", "content": ""}, {"role": "assistant", "content": None}])
def test_an_assistant_may_have_said_nothing(message):
    body = {"messages": [{"role": "user", "content": "a"}, message, {"role": "user", "content": "b"}]}
    assert ASKER.post("/v1/chat/completions", body).status_code == 200


def test_developer_is_the_systems_newer_name():
    asker = Asker()
    asker.post("/v1/chat/completions", {"messages": [{"role": "developer", "content": "be"}]})
    assert bytes(asker.core.added[0].prompt_ids) == b"<system>be<assistant>"


@pytest.mark.parametrize("prompt", [[], "", [""], [[]], [[1], []], ["a", 1], [True], 5, [[1], "a"]])
def test_malformed_prompts_are_refused(prompt):
    refused(ASKER.complete(prompt), "prompt")


@pytest.mark.parametrize("prompt", [[VOCAB], [[1], [VOCAB + 1]]])
def test_token_ids_outside_of_the_vocabulary_are_refused(prompt):
    refused(ASKER.complete(prompt), "prompt")


@pytest.mark.parametrize(("length", "status"), [(98, 200), (99, 200), (100, 400), (101, 400)])
@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_must_leave_room_in_the_context(length, status, stream):
    reply = ASKER.complete("x" * length, stream=stream)
    assert reply.status_code == status
    if status == 400:
        message = refused(reply, "prompt")["message"]
        assert str(length) in message
        assert "100" in message


@pytest.mark.parametrize(("asked", "given"), [(1, 1), (9, 9), (10, 10), (11, 10), (10**9, 10)])
def test_max_tokens_is_cut_to_the_room_that_is_left(asked, given):
    asker = Asker()
    choice = asker.complete("x" * 90, max_tokens=asked, ignore_eos=True).json()["choices"][0]
    assert asker.core.added[0].params.max_tokens == given
    assert choice["finish_reason"] == "length"


def test_minus_one_is_no_limit_of_its_own():
    asker = Asker()
    for reply in (
        asker.complete("x" * 90, max_tokens=-1),
        asker.complete("x" * 90, max_tokens=-1.0),
        asker.post("/generate", {"text": "x" * 90, "sampling_params": {"max_new_tokens": -1}}),
    ):
        assert reply.status_code == 200
    assert [request.params.max_tokens for request in asker.core.added] == [10, 10, 10]
    asker.chat(max_tokens=-1)
    assert asker.core.added[-1].params.max_tokens == 100 - len("<user>hi<assistant>")


def test_the_two_names_of_the_limit_must_agree():
    refused(ASKER.chat(max_tokens=5, max_completion_tokens=6), "max_completion_tokens")
    asker = Asker()
    asker.chat(max_completion_tokens=6)
    assert asker.core.added[0].params.max_tokens == 6


def test_the_choices_of_all_prompts_together_are_limited():
    refused(ASKER.complete(["a"] * 100, n=11), "n")


def test_the_engine_alone_says_which_temperatures_are_greedy():
    asker = Asker()
    for temperature in (0, 1e-9, 1e-4):
        asker.complete(temperature=temperature)
    assert [request.params.temperature for request in asker.core.added] == [0, 1e-9, 1e-4]
    sampled = [Sampling(seed=0, temperature=request.params.temperature) for request in asker.core.added]
    assert [one.is_greedy for one in sampled] == [True, True, False]


def test_the_models_own_sampling_applies_where_a_request_is_silent():
    asker = Asker(sampling_defaults={"temperature": 0.6, "top_k": 20.0})
    asker.complete()
    asker.complete(temperature=1, top_k=0)
    own, asked = (request.params for request in asker.core.added)
    assert (own.temperature, own.top_k, own.top_p) == (0.6, 20, 1.0)
    assert (asked.temperature, asked.top_k) == (1.0, 0)


def test_the_cores_own_refusal_and_its_accidents_concern_one_request_only():
    reply = ASKER.complete([999])
    assert refused(reply, "prompt")["message"].startswith("999")
    assert ASKER.complete([998]).status_code == 500
    assert ASKER.complete().status_code == 200


RAW = [
    (b"{", 400),
    (b"", 400),
    (b"[]", 400),
    (b'"x"', 400),
    (b"\xff\xfe", 400),
    (b'{"prompt": NaN}', 400),
    (b'{"prompt": "hi", "temperature": 1e999}', 400),
    (b'{"prompt": "\\ud800"}', 400),
    (b"[" * 50_000, 400),
    (b'{"prompt": ' + b"[" * 150 + b"]" * 150 + b"}", 400),
    (b'{"prompt": "' + b"x" * 2000 + b'"}', 413),
]


@pytest.mark.parametrize(("data", "status"), RAW)
def test_malformed_bodies_get_their_status_as_json(data, status):
    asker = Asker(limits=LimitsSection(body_bytes=200_000 if status == 400 else 1000))
    reply = asker.ask("POST", "/v1/completions", content=data, headers={"content-type": "application/json"})
    assert reply.status_code == status
    assert json.loads(reply.content)["error"]["message"]


def test_a_body_of_undeclared_size_is_cut_off():
    asker = Asker(limits=LimitsSection(body_bytes=1000))

    async def chunks():
        for _ in range(20):
            yield b" " * 100

    reply = asker.ask("POST", "/v1/completions", content=chunks(), headers={"content-type": "application/json"})
    assert reply.status_code == 413


def test_a_wrong_content_type_is_refused():
    reply = ASKER.ask("POST", "/v1/completions", content=b"{}", headers={"content-type": "text/plain"})
    refused(reply, None, 415)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, None),
        ({"text": "a", "input_ids": [1]}, None),
        ({"text": "a", "sampling_params": {"max_new_tokens": 0}}, "sampling_params.max_new_tokens"),
        ({"text": "a", "sampling_params": {"max_tokens": 1}}, "sampling_params.max_tokens"),
        ({"text": "a", "sampling_params": {"regex": "x"}}, "sampling_params.regex"),
        ({"text": "a", "return_logprob": True}, "return_logprob"),
        ({"input_ids": [VOCAB]}, "input_ids"),
    ],
)
def test_generate_names_what_is_wrong(body, param):
    refused(ASKER.post("/generate", body), param)


def test_generate_accepts_what_benchmarks_send():
    body = {
        "text": "hi",
        "sampling_params": {"temperature": 0.0, "max_new_tokens": 4, "ignore_eos": True},
        "stream": True,
        "lora_path": None,
        "return_logprob": False,
        "return_routed_experts": False,
        "logprob_start_len": -1,
        "image_data": None,
    }
    assert ASKER.post("/generate", body).status_code == 200
