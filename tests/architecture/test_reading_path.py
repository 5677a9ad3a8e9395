"""ARCHITECTURE's reading path is short, connected and complete: what calls a backend on the way is in it."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from itertools import pairwise

from support.sources import ROOT, tree
from support.tiny_models import make_tiny

PLATFORM = ROOT / "platform/src/anychip"
MOST = 30

#: prints the platform's files that are on the stack when a plugin's code runs, from a recipe to its first token
TRACER = """
import json, sys
from pathlib import Path

platform, plugins, source = sys.argv[1:]
found = set()

def trace(frame, event, _):
    if event == "call" and frame.f_code.co_filename.startswith(plugins):
        while frame is not None:
            if frame.f_code.co_filename.startswith(platform) and frame.f_code.co_name != "<module>":
                found.add(frame.f_code.co_filename[len(platform) + 1:])
            frame = frame.f_back

from anychip.engine.core import build_core
from anychip.engine.request import GenerateRequest, SamplingParams
from anychip.recipe import load

sys.setprofile(trace)
sets = ["model.dtype=float32", "memory.kv_tokens=1024"]
core = build_core(load(source, sets=sets, env={}).recipe, lambda *_: None)
core.add(GenerateRequest("r", [5, 6, 7], SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)))
events = []
while not any(event.token_ids for event in events):
    events = core.step()
sys.setprofile(None)
core.close()
print(json.dumps(sorted(found)))
"""


def listed() -> list[str]:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    section = text.split("## Reading path")[1].split("\n## ")[0]
    return re.findall(r"^\d+\. `([\w/]+\.py)`: \S", section, re.MULTILINE)


def module_of(file: str) -> str:
    return "anychip." + file.removesuffix(".py").replace("/", ".")


def named_in(file: str) -> set[str]:
    """Modules and packages that a file imports, anywhere in it, or names as text."""
    found = set()
    for node in ast.walk(tree(PLATFORM / file)):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{one.name}" for one in node.names)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value.split(":")[0])
    return found


def test_the_path_is_short():
    files = listed()
    assert 20 < len(files) <= MOST
    assert len(set(files)) == len(files)
    assert [file for file in files if not (PLATFORM / file).is_file()] == []


def test_each_file_is_named_by_one_before_it():
    files = listed()
    assert files[0] == "cli/apply.py"
    named: set[str] = set()
    for before, file in pairwise(files):
        named |= named_in(before)
        assert module_of(file) in named, f"no file before {file} names it"


def test_whatever_calls_a_backend_before_the_first_token_is_in_the_path(tmp_path):
    tiny = make_tiny(tmp_path / "tiny", "qwen3", tokenizer=True)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        json.dumps({"version": 1, "name": "r", "model": {"source": str(tiny)}, "backend": {"name": "cpu"}})
    )
    done = subprocess.run(
        [sys.executable, "-c", TRACER, str(PLATFORM), str(ROOT / "plugins"), str(recipe)],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    called = set(json.loads(done.stdout.splitlines()[-1]))
    assert {"backends.py", "engine/runner.py", "engine/loader.py"} <= called
    assert called - set(listed()) == set()
