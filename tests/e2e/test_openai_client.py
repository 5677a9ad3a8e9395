"""The official client against the service: chat, completions, streams, usage, errors."""

import openai
import pytest

from support.processes import stub_service

PIECES = ["<think>", "\nLet me see.", "\n</think>\n\n", "The quick", " brown fox", " jumps."]
REPLY = [[257 + i] for i in range(len(PIECES))]
USER = [{"role": "user", "content": "Say something."}]


@pytest.fixture(scope="module")
def service():
    with stub_service(pieces=PIECES, core={"reply": REPLY}, settings={"api_key": "secret"}) as service:
        service.wait_for("ready")
        yield service


@pytest.fixture
def client(service):
    with openai.OpenAI(base_url=f"{service.url}/v1", api_key="secret", max_retries=0) as client:
        yield client


def test_chat_answers_with_usage(client):
    reply = client.chat.completions.create(model="stub", messages=USER)
    choice = reply.choices[0]
    assert choice.message.content == "The quick brown fox jumps."
    assert choice.message.reasoning_content == "Let me see."
    assert (choice.message.role, choice.finish_reason) == ("assistant", "stop")
    assert reply.usage.completion_tokens == 7
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + 7
    assert reply.usage.prompt_tokens_details.cached_tokens == 1
    assert reply.usage.completion_tokens_details.reasoning_tokens == 2  # the opening marker is none


def test_chat_streams_text_and_usage(client):
    stream = client.chat.completions.create(
        model="stub", messages=USER, stream=True, n=2, stream_options={"include_usage": True}
    )
    texts, ends, usage = ["", ""], [], None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            ends += [choice.finish_reason] if choice.finish_reason else []
    assert texts == ["The quick brown fox jumps."] * 2
    assert ends == ["stop", "stop"]
    assert usage.completion_tokens == 14


def test_the_clients_own_stream_helper_follows(client):
    with client.chat.completions.stream(model="stub", messages=USER) as stream:
        stream.until_done()
        assert stream.get_final_completion().choices[0].message.content == "The quick brown fox jumps."


def test_thinking_is_switched_through_extra_body(client):
    reply = client.chat.completions.create(
        model="stub", messages=USER, extra_body={"chat_template_kwargs": {"enable_thinking": False}}
    )
    assert reply.choices[0].message.content == "".join(PIECES)


def test_completions_stop_and_stream(client):
    reply = client.completions.create(model="stub", prompt="hi", stop=["brown"], n=2)
    assert [choice.text for choice in reply.choices] == ["".join(PIECES[:4]) + " "] * 2
    stream = client.completions.create(model="stub", prompt="hi", stream=True, max_tokens=4)
    assert "".join(chunk.choices[0].text for chunk in stream) == "".join(PIECES[:4])


def test_models_are_listed(client):
    assert [model.id for model in client.models.list()] == ["stub"]
    assert client.models.retrieve("stub").id == "stub"


def test_an_unknown_model_is_not_found(client):
    with pytest.raises(openai.NotFoundError) as error:
        client.chat.completions.create(model="other", messages=USER)
    assert error.value.code == "model_not_found"
    assert "stub" in error.value.message


def test_a_bad_parameter_is_named(client):
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model="stub", messages=USER, temperature=3)
    assert error.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model="stub", messages=USER, tools=[{"type": "function"}])
    assert error.value.param == "tools"


def test_a_full_queue_is_a_rate_limit():
    with stub_service(core={"max_queued": 0}) as service:
        service.wait_for("ready")
        with (
            openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0) as client,
            pytest.raises(openai.RateLimitError) as error,
        ):
            client.completions.create(model="stub", prompt="a")
    assert error.value.response.headers["retry-after"] == "2"


def test_a_wrong_key_is_an_authentication_error(service):
    with (
        openai.OpenAI(base_url=f"{service.url}/v1", api_key="wrong", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.models.list()


def test_an_error_within_a_stream_is_raised():
    core = {"reply": [[65]], "endless": True, "fail_steps": [4]}
    with stub_service(core=core) as service:
        service.wait_for("ready")
        with openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0) as client:
            stream = client.completions.create(model="stub", prompt="hi", stream=True)
            with pytest.raises(openai.APIError, match="step 4 fails"):
                list(stream)
