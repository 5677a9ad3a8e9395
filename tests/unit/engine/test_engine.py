"""The Python API: prompts of every form in, completions in order out. Knows a tiny model; knows no server."""

from dataclasses import replace

import pytest
import torch

import anychip
from anychip.engine.core import EngineCore
from anychip.engine.engine import Completion, Engine
from anychip.engine.request import SamplingParams
from anychip_sdk.errors import AnychipError, RecipeInvalid, RequestInvalid
from support.engines import make_recipe
from support.tiny_models import make_tiny

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("tiny") / "qwen3", "qwen3", tokenizer=True)


@pytest.fixture(scope="module")
def engine(directory):
    with Engine.from_recipe(make_recipe(directory)) as made:
        yield made


def test_a_text_gives_one_completion(engine):
    [completion] = engine.generate("The quick brown fox", GREEDY)
    assert isinstance(completion, Completion)
    assert (completion.prompt, completion.index, completion.finish_reason) == (0, 0, "length")
    assert len(completion.token_ids) == completion.completion_tokens == 8
    assert completion.text == engine.tokenizer.decode(list(completion.token_ids))
    assert completion.prompt_tokens == len(engine.tokenizer.encode("The quick brown fox"))


def test_text_ids_and_messages_are_one_prompt_each(engine):
    ids = engine.tokenizer.encode("The quick brown fox")
    assert engine.generate(ids, GREEDY)[0].token_ids == engine.generate("The quick brown fox", GREEDY)[0].token_ids
    rendered = engine.tokenizer.encode(engine.template.render(MESSAGES), add_special=False)
    from_messages, from_ids = engine.generate([MESSAGES, rendered], GREEDY)
    assert from_messages.token_ids == from_ids.token_ids


@pytest.mark.parametrize(("thinking", "said"), [("off", {"enable_thinking": False}), ("on", {"enable_thinking": True})])
def test_thinking_is_switched_by_the_recipe(directory, thinking, said):
    with Engine.from_recipe(make_recipe(directory, model={"thinking": thinking})) as engine:
        text = engine.template.render(MESSAGES, **said)
        assert ("<think>" in text) == (thinking == "off")
        ids = engine.tokenizer.encode(text, add_special=False)
        from_messages, from_ids = engine.generate([MESSAGES, ids], GREEDY)
    assert from_messages.token_ids == from_ids.token_ids


def test_several_prompts_are_answered_in_their_order(engine):
    prompts = ["one", [5, 6, 7], MESSAGES, "a longer text that takes its time to compute"]
    together = engine.generate(prompts, GREEDY)
    assert [one.prompt for one in together] == [0, 1, 2, 3]
    alone = [engine.generate([prompt], GREEDY)[0] for prompt in prompts]
    assert [one.token_ids for one in together] == [one.token_ids for one in alone]


def test_n_completions_come_in_order_of_their_index(engine):
    params = SamplingParams(temperature=1.0, seed=3, max_tokens=6, n=3, ignore_eos=True)
    found = engine.generate(["one", "two"], params)
    assert [(one.prompt, one.index) for one in found] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert len({one.token_ids for one in found}) == 6
    assert engine.generate(["one", "two"], params)[0].token_ids == found[0].token_ids


def test_the_default_is_greedy(engine):
    prompt = list(range(3, 483))  # the context ends soon behind it
    first, second = engine.generate([prompt]), engine.generate([prompt], SamplingParams(temperature=0.0))
    assert first[0].token_ids == second[0].token_ids


def test_a_second_run_finds_its_prefix(engine):
    prompt = list(range(100, 150))
    engine.generate(prompt, GREEDY)
    assert engine.generate(prompt, GREEDY)[0].cached_tokens == 48


def test_a_stop_string_ends_the_text_before_it(engine):
    whole = engine.generate("The quick brown fox", SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True))[0]
    stop = whole.text[len(whole.text) // 2 :][:3]
    cut = engine.generate(
        "The quick brown fox", SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True), stop=[stop]
    )[0]
    assert cut.finish_reason == "stop"
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert cut.completion_tokens < 40
    assert not engine.core.has_work


def test_a_stop_string_of_one_prompt_leaves_the_others(engine):
    params = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)
    first, second = engine.generate(["one", "two"], params)
    stop = first.text[10:14]
    again = engine.generate(["one", "two"], params, stop=[stop])
    assert again[0].finish_reason == "stop"
    assert (again[1].text == second.text) == (stop not in second.text)


def test_a_wrong_prompt_computes_nothing_and_leaves_nothing(engine):
    for wrong in ([9999], "x" * 5000, []):
        with pytest.raises(RequestInvalid):
            engine.generate(["fine", wrong], GREEDY)
        assert not engine.core.has_work
    assert len(engine.generate("fine", GREEDY)) == 1


def test_an_interrupted_step_leaves_the_engine_usable(directory, monkeypatch):
    with Engine.from_recipe(make_recipe(directory)) as engine:
        expected = engine.generate("The quick brown fox", GREEDY)[0].token_ids
        forward, calls = engine.core._runner._model.forward, []

        def interrupted(*args):
            calls.append(args)
            if len(calls) == 3:
                raise KeyboardInterrupt
            return forward(*args)

        monkeypatch.setattr(engine.core._runner, "_model", replace(engine.core._runner._model, forward=interrupted))
        with pytest.raises(KeyboardInterrupt):
            engine.generate("The quick brown fox", GREEDY)
        assert not engine.core.has_work
        assert engine.generate("The quick brown fox", GREEDY)[0].token_ids == expected
        engine.core.scheduler.check_invariants()


def test_messages_need_a_template(tmp_path, engine):
    without = Engine(engine.core, engine.tokenizer, None)
    with pytest.raises(RequestInvalid, match="has no chat template"):
        without.generate([MESSAGES], GREEDY)


def test_a_file_with_assignments_makes_an_engine(directory, tmp_path):
    file = tmp_path / "r.yaml"
    file.write_text(f"version: 1\nname: t\nmodel: {{source: {directory}}}\nbackend: {{name: cpu, threads: 1}}\n")
    with anychip.Engine.from_recipe(file, ["memory.kv_tokens=1024", "model.dtype=float32"]) as engine:
        assert engine.plan.scheduler.kv_tokens == 1024
    with pytest.raises(RecipeInvalid):
        anychip.Engine.from_recipe(file, ["memory.kv_tokns=1024"])


def test_a_checkpoint_without_a_tokenizer_is_an_error_and_closes_the_core(tmp_path, monkeypatch):
    bare = make_tiny(tmp_path / "bare", "llama")
    closed = []
    close = EngineCore.close
    monkeypatch.setattr(EngineCore, "close", lambda core: (closed.append(core), close(core)))
    with pytest.raises(AnychipError, match="tokenizer"):
        Engine.from_recipe(make_recipe(bare))
    assert len(closed) == 1
