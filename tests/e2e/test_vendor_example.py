"""The vendor's guide holds what it promises: its example, installed and named, answers with a real model."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support import vendor_plugins

ROOT = Path(__file__).parents[2]
CODE = """
import torch
from anychip import Engine
from anychip.engine.request import SamplingParams

torch.set_num_threads(2)
question = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
with Engine.from_recipe("recipes/quickstart.yaml", ["backend.name=acme", "memory.kv_tokens=1024"]) as engine:
    print(engine.plan.backend.name, engine.plan.backend.distribution)
    print(engine.generate(question, SamplingParams(temperature=0, max_tokens=12))[0].text)
"""


@pytest.mark.slow
def test_the_example_serves_a_real_model_by_name(tmp_path):
    vendor_plugins.install(tmp_path / "site")
    environ = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run(
        [sys.executable, "-c", CODE], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    backend, answer = done.stdout.splitlines()
    assert backend == "acme acme-anychip"
    assert "Paris" in answer
