"""The recipe of a chip that isn't here: refused with what is missing, served on its emulator, equal to the CPU's."""

import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from anychip.cli.main import main
from support.machines import START_S, Machine, family
from support.tiny_models import make_tiny

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "recipes" / "qwen3-kunlun.yaml"
GENERATE = """
import json, sys
import torch
from anychip import Engine
from anychip.engine.request import SamplingParams

torch.set_num_threads(1)
prompts = ["What is the capital of France?", "def add(first, second):", "1 2 3 4 5 6 7 8 9 10 11 12 " * 8]
params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
with Engine.from_recipe(sys.argv[1], sys.argv[2:]) as engine:
    answers = [engine.generate(prompt, params)[0].token_ids for prompt in prompts]
    print(json.dumps({"backend": engine.plan.backend.name, "answers": answers}))
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    found = Machine(tmp_path_factory.mktemp("machine"))
    make_tiny(
        found.folder / "model",
        "qwen3",
        tokenizer=True,
        head_dim=128,
        torch_dtype="bfloat16",
        max_position_embeddings=40960,
    )
    yield found
    found.run("down", "--all")


def sets(machine):
    return ["--set", f"model.source={machine.folder / 'model'}", "--set", f"server.port={machine.port}"]


@pytest.fixture
def here(machine, monkeypatch):
    """The machine's home, for commands in this process."""
    monkeypatch.setenv("ANYCHIP_HOME", machine.environ["ANYCHIP_HOME"])
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_without_the_chip_every_missing_part_is_named(machine, here, capsys):
    assert main(["apply", str(RECIPE), *sets(machine)]) == 4
    told = capsys.readouterr().err
    for part in ("/dev/xpu0", "driver", "torch_xmlir", "kunlun_ops", "install"):
        assert part in told


def test_doctor_names_the_missing_parts_and_has_nothing_against_the_model(machine, here, capsys):
    assert main(["doctor", str(RECIPE), *sets(machine), "-o", "json"]) == 4
    sections = json.loads(capsys.readouterr().out)["sections"]
    failed = [one for section in sections for one in section["findings"] if one["status"] == "fail"]
    assert {one["area"] for one in failed} >= {"device"}
    assert any("torch_xmlir" in one["what"] for one in failed)
    assert "model" not in {one["area"] for one in failed}


@pytest.mark.slow
class TestEmulatedService:
    """In order, on one service."""

    def test_it_is_served_on_the_emulator_and_says_so(self, machine):
        done = machine.run("apply", RECIPE, "--emulate", *sets(machine), "--set", "model.thinking=auto")
        assert done.returncode == 0, done.stderr
        assert "(revision 1, kunlun EMULATED)" in done.stdout
        assert "EMULATED: results are real, speed is not" in done.stderr
        told = machine.status()
        assert (told["condition"], told["backend"], told["emulated"]) == ("running", "kunlun", True)
        assert httpx.get(f"{machine.url}/server_info", trust_env=False).json()["emulated"] is True
        metrics = httpx.get(f"{machine.url}/metrics", trust_env=False).text
        assert re.search(r"^anychip:emulated 1\.0$", metrics, re.MULTILINE)

    @pytest.mark.parametrize("thinks", [False, True])
    def test_chat_answers_with_thinking_off_and_on(self, machine, thinks):
        body = self.chat(machine, "Where is Paris?", thinks)
        assert body["usage"]["completion_tokens"] == 8
        assert body["choices"][0]["finish_reason"] == "length"

    def test_the_thinking_switch_reaches_the_prompt(self, machine):
        off, on = (self.chat(machine, "What is a page?", thinks)["usage"]["prompt_tokens"] for thinks in (False, True))
        assert off > on  # the template closes an empty thought

    def test_a_prefix_that_was_seen_is_a_hit(self, machine):
        question = "A request holds pages until it is done. " * 40
        first, second = (self.chat(machine, question, False)["usage"] for _ in range(2))
        assert second["prompt_tokens"] == first["prompt_tokens"]
        assert second["prompt_tokens_details"]["cached_tokens"] > first["prompt_tokens"] // 2

    def test_down_leaves_nothing(self, machine):
        processes = family(machine.server())
        assert machine.run("down").returncode == 0
        machine.require_clean(processes)

    def chat(self, machine, question, thinks):
        body = {
            "model": "qwen3",
            "messages": [{"role": "user", "content": question}],
            "max_tokens": 8,
            "temperature": 0,
            "ignore_eos": True,
            "chat_template_kwargs": {"enable_thinking": thinks},
        }
        answer = httpx.post(f"{machine.url}/v1/chat/completions", json=body, trust_env=False, timeout=60)
        assert answer.status_code == 200, answer.text
        return answer.json()


@pytest.mark.slow
def test_the_processor_gives_the_same_tokens_after_one_changed_line(machine, tmp_path):
    """Greedy, in float32: the recipe on the emulator, and with its line `backend` naming the CPU."""
    shutil.copytree(ROOT / "recipes", tmp_path / "recipes")
    other = tmp_path / "recipes" / RECIPE.name
    changed, count = re.subn(r"(?m)^backend: .*$", "backend: {name: cpu}", other.read_text())
    assert count == 1
    other.write_text(changed)
    common = [f"model.source={machine.folder / 'model'}", "model.dtype=float32", "memory.kv_tokens=64Ki"]
    emulated = generated(machine, RECIPE, *common, "backend.emulate=true")
    embedded = generated(machine, other, *common)
    assert (emulated["backend"], embedded["backend"]) == ("kunlun", "cpu")
    assert emulated["answers"] == embedded["answers"]
    assert len({token for answer in emulated["answers"] for token in answer}) > 3


def generated(machine, recipe, *assignments):
    command = [sys.executable, "-c", GENERATE, str(recipe), *assignments]
    done = subprocess.run(command, env=machine.environ, capture_output=True, text=True, timeout=START_S, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
