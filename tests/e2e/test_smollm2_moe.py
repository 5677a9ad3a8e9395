"""SmolLM2 as a mixture of experts, made by the example and served as its recipe says. Knows the model's name."""

import subprocess
import sys

import pytest

from anychip import Engine
from anychip.engine.request import SamplingParams
from anychip.recipe import load
from support.sources import ROOT

QUESTION = "What is the capital of France? Answer in one sentence."


@pytest.mark.slow
def test_it_knows_the_capital_of_france(tmp_path):
    folder = tmp_path / "smollm2-moe"
    subprocess.run([sys.executable, str(ROOT / "examples" / "smollm2_moe.py"), str(folder)], check=True, timeout=240)
    recipe = load(ROOT / "recipes" / "smollm2-moe.yaml", [f"model.source={folder}"], env={}).recipe
    with Engine.from_recipe(recipe) as engine:
        chat = [{"role": "user", "content": QUESTION}]
        [answer] = engine.generate([chat], SamplingParams(temperature=0, max_tokens=40))
    assert answer.text == "The capital of France is Paris."
    assert answer.finish_reason == "stop"
