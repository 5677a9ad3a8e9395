"""The official client against a real engine with a tiny model: what a stub cannot show."""

import concurrent.futures

import openai
import pytest

from support.deploying import free_port
from support.processes import served, wait_until
from support.tiny_models import make_tiny

USER = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
START_S = 120


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    folder = tmp_path_factory.mktemp("engine")
    port = free_port()
    recipe = {
        "version": 1,
        "name": "tiny",
        "model": {
            "source": str(make_tiny(folder / "model", "qwen3", tokenizer=True)),
            "dtype": "float32",
            "context_length": 256,
            "thinking": "auto",
        },
        "backend": {"name": "cpu", "threads": 1},
        "memory": {"kv_tokens": 2048},
        "scheduler": {"chunked_prefill_size": 16},
        "server": {"port": port, "served_name": "tiny"},
    }
    with served(folder, recipe, START_S) as service:
        yield service


@pytest.fixture
def client(service):
    with openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def text_of(client, **fields):
    """One completion's text, greedy and of full length unless said otherwise."""
    fields = {"temperature": 0, "max_tokens": 24, "extra_body": {"ignore_eos": True}, **fields}
    return client.completions.create(model="tiny", **fields).choices[0].text


def test_a_stream_is_the_whole_reply(client):
    fields = {"model": "tiny", "messages": USER, "temperature": 0, "max_tokens": 40}
    whole = client.chat.completions.create(**fields)
    chunks = list(client.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True}))
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert streamed == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 40
    assert whole.choices[0].finish_reason == "length"


def test_a_prompt_seen_before_is_cached(client):
    fields = {"model": "tiny", "prompt": "A page holds the keys and values of some tokens; " * 2, "max_tokens": 1}
    first, second = (client.completions.create(**fields).usage for _ in range(2))
    assert first.prompt_tokens == second.prompt_tokens
    assert second.prompt_tokens_details.cached_tokens > first.prompt_tokens_details.cached_tokens
    assert second.prompt_tokens_details.cached_tokens < second.prompt_tokens


def test_a_seed_repeats_itself_and_choices_differ(client):
    fields = {"model": "tiny", "prompt": "The quick", "temperature": 1.0, "n": 3, "max_tokens": 24}
    runs = [[one.text for one in client.completions.create(**fields, seed=seed).choices] for seed in (7, 7, 8)]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]
    assert len(set(runs[0])) == 3


def test_company_does_not_change_a_greedy_text(client):
    prompts = [f"{number} and so on" for number in range(16)]
    alone = [text_of(client, prompt=prompt) for prompt in prompts]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        together = list(pool.map(lambda prompt: text_of(client, prompt=prompt), prompts))
    assert together == alone


def test_a_bias_chooses_the_token_and_a_stop_token_ends_the_text(client, service):
    token = service.client.post("/tokenize", json={"prompt": "fox", "add_special_tokens": False}).json()["tokens"][-1]
    piece = service.client.post("/detokenize", json={"tokens": [token]}).json()["text"]
    assert text_of(client, prompt="x", max_tokens=3, logit_bias={str(token): 100}) == piece * 3
    reply = client.completions.create(
        model="tiny", prompt="x", logit_bias={str(token): 100}, extra_body={"stop_token_ids": [token]}
    )
    assert (reply.choices[0].text, reply.choices[0].finish_reason) == ("", "stop")


@pytest.mark.parametrize("field", [{"logit_bias": {"512": 5}}, {"extra_body": {"stop_token_ids": [512]}}])
def test_a_token_outside_of_the_vocabulary_is_refused_beside_a_good_stream(client, field):
    stream = client.completions.create(model="tiny", prompt="The quick", max_tokens=60, temperature=0, stream=True)
    with pytest.raises(openai.BadRequestError, match="512"):
        client.completions.create(model="tiny", prompt="x", **field)
    assert "".join(chunk.choices[0].text for chunk in stream)


def test_tiny_temperatures_are_greedy(client):
    texts = {text_of(client, prompt="The five", temperature=temperature) for temperature in (0, 1e-9, 1e-4)}
    assert len(texts) == 1
    assert text_of(client, prompt="The five", temperature=2, top_p=1e-9) in texts


def test_leaving_frees_the_pages(client, service):
    with client.completions.create(model="tiny", prompt="go", max_tokens=200, stream=True) as stream:
        next(iter(stream))

    def freed():
        stats = service.client.get("/server_info").json()["stats"]
        return stats["running"] == 0 and stats["pages_in_flight"] == stats["pages_protected"] == 0

    wait_until(freed, 5, "the release of its pages")


def test_a_killed_engine_comes_back_and_answers_the_same(client, service):
    before = text_of(client, prompt="The quick brown")
    with client.completions.create(model="tiny", prompt="go on", max_tokens=240, stream=True) as stream:
        chunks = iter(stream)
        next(chunks)
        service.worker().kill()
        with pytest.raises(openai.APIError):
            list(chunks)
    wait_until(lambda: service.health() != "ready", 5, "503")
    service.wait_for("ready", START_S)
    assert text_of(client, prompt="The quick brown") == before
