"""`platform models`, as a user calls it: what it tells of checkpoints of every state, and its exit codes."""

from __future__ import annotations

import json

import pytest

from anychip import backends
from anychip.backends import Choice
from anychip.cli.main import main
from anychip.recipe import load
from anychip_sdk.errors import DeviceAbsent
from support.plans import GIB, plan_of, stub_backend
from support.tiny_models import make_tiny, write_gguf


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("tiny"), "qwen3", tokenizer=True)


@pytest.fixture
def machine(monkeypatch):
    """Every backend that is asked for is a stub of some capacity."""

    def of(capacity):
        backend = stub_backend(capacity=capacity)
        monkeypatch.setattr(backends, "choose", lambda *_, **__: Choice(backend, "stub"))

    of(GIB)
    return of


def told(capsys, *arguments):
    code = main(["models", *map(str, arguments), "--output", "json"])
    shown = capsys.readouterr()
    return code, json.loads(shown.out)


def test_a_good_checkpoint_is_told_with_its_needs_and_a_recipe_that_plans(folder, machine, capsys, tmp_path):
    code, document = told(capsys, folder, "--context", 100)
    assert code == 0
    assert (document["supported"], document["problems"], document["family"]) == (True, [], "qwen3")
    assert document["stored_bytes"].keys() == {"F32"}
    assert document["parameters"] * 4 == document["stored_bytes"]["F32"]
    own = document["needs"][0]
    assert (own["precision"], own["context_bytes"]) == ("float32", 100 * own["bytes_per_token"])
    file = tmp_path / "started.yaml"
    file.write_text(document["recipe"], encoding="utf-8")
    recipe = load(file, env={}).recipe
    assert (recipe.model.source, recipe.model.context_length) == (str(folder), 100)
    from anychip.weights.checkpoint import open_checkpoint

    with open_checkpoint(folder) as checkpoint:
        plan = plan_of(recipe, checkpoint.config, stub_backend(capacity=GIB))
    assert plan.memory.weights == own["weights_bytes"]


def test_the_text_holds_the_table_and_the_recipe(folder, machine, capsys):
    assert main(["models", str(folder)]) == 0
    text = capsys.readouterr().out
    assert "Qwen3ForCausalLM, family qwen3" in text
    assert "kv of 3 layers, a token: k 2x32, v 2x32" in text
    assert "LARGEST CONTEXT" in text
    assert f"source: {folder}" in text


def test_a_gguf_file_is_told_alike(folder, machine, capsys, tmp_path):
    file = write_gguf(folder, tmp_path / "tiny.gguf", "Q8_0")
    code, document = told(capsys, file)
    assert code == 0
    assert document["format"] == "gguf"
    assert "Q8_0" in document["stored_bytes"]
    assert "auto" in [need["precision"] for need in document["needs"]]


def test_everything_in_the_way_is_told_at_once_and_exits_4(machine, capsys, tmp_path):
    broken = make_tiny(tmp_path, "qwen3", final_logit_softcapping=30.0, alibi=True, brand_new=1)
    code, document = told(capsys, broken)
    assert (code, document["supported"], document["recipe"]) == (4, False, None)
    assert [problem.split()[1] for problem in document["problems"]] == ["final_logit_softcapping", "alibi"]
    assert "brand_new" in document["notes"][0]
    assert document["architecture"] == "Qwen3ForCausalLM"


def test_a_folder_that_lacks_tensors_and_tokenizer_is_still_sized(machine, capsys, tmp_path):
    bare = make_tiny(tmp_path, "llama")
    code, document = told(capsys, bare)
    assert code == 4
    assert "tokenizer.json" in document["problems"][0]
    assert document["needs"][0]["weights_bytes"] > 0


def test_an_unknown_architecture_names_those_that_are_known(machine, capsys, tmp_path):
    strange = make_tiny(tmp_path, "llama", architectures=["GPT2LMHeadModel"])
    code, document = told(capsys, strange)
    assert (code, document["architecture"], document["family"]) == (4, "GPT2LMHeadModel", None)
    assert "LlamaForCausalLM" in document["problems"][0]


def test_too_long_a_context_is_in_the_way(folder, machine, capsys):
    code, document = told(capsys, folder, "--context", 513)
    assert code == 4
    assert document["problems"] == ["a context of 513 tokens is asked for; the model was made for 512"]


def test_a_device_that_is_too_small_names_what_would_be_needed(folder, machine, capsys):
    machine(2**16)
    code, document = told(capsys, folder)
    assert code == 4
    (problem,) = document["problems"]
    assert problem.startswith("no precision can be served on this device; int4:")
    assert {need["largest_context"] for need in document["needs"] if need["problem"] is None} == set()


def test_a_smaller_precision_is_proposed_where_the_own_has_no_room(folder, machine, capsys):
    machine(int(1.3 * 2**20))
    sets = ("--set", "scheduler.max_running_requests=1", "--set", "scheduler.chunked_prefill_size=16")
    code, document = told(capsys, folder, *sets)
    needs = {need["precision"]: need.get("largest_context", 0) for need in document["needs"]}
    assert code == 0
    assert 0 < needs["float32"] < 512 == needs["bfloat16"]
    assert "dtype: bfloat16\n" in document["recipe"]


def test_without_a_device_the_checkpoint_is_told_and_the_device_is_in_the_way(folder, monkeypatch, capsys):
    def absent(*_, **__):
        raise DeviceAbsent("backend 'stub': no device present")

    monkeypatch.setattr(backends, "choose", absent)
    code, document = told(capsys, folder)
    assert (code, document["device"], document["needs"]) == (4, None, [])
    assert document["problems"] == ["backend 'stub': no device present"]
    assert document["family"] == "qwen3"


def test_nothing_there_is_an_error_without_a_result(capsys, tmp_path):
    assert main(["models", str(tmp_path / "nowhere"), "--output", "json"]) == 4
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "does not exist" in shown.err


@pytest.mark.parametrize(
    "arguments", [("--context", "9"), ("--backend", "cpu"), ("--emulate",), ("/m", "--format", "markdown")], ids=str
)
def test_options_that_do_not_fit_are_exit_2(arguments, capsys):
    assert main(["models", *arguments]) == 2


def test_a_wrong_key_is_exit_3(folder, capsys):
    assert main(["models", str(folder), "--set", "memory.fraction=1"]) == 3
