"""Time what a user waits for: the import, commands that compute nothing, and a service from its start to readiness.

Knows command lines and recipes; knows nothing of how the time is spent.

    python benchmarks/startup.py [--recipe recipes/quickstart.yaml] [--repeats 5] [--services 3] [--shape]

Prints the least and the median of all repeats, with the CPU time beside the wall time: on a shared machine the least
wall time and the CPU time mean something. With --shape a service of Qwen3-0.6B's shape with random weights is started
too. Files are in the page cache: the first start of each kind is not counted. The aim is 150 ms for the import, 300 ms
for `platform --help`, 5 s for SmolLM2-135M's service and 8 s for Qwen3-0.6B's. On a busy machine, put `chrt -r 10` in
front (as root).
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from service_process import running

ROOT = Path(__file__).parents[1]
QUICKSTART = ROOT / "recipes" / "quickstart.yaml"
COMMANDS = {
    "python -c pass": ("-c", "pass"),
    "import anychip": ("-c", "import anychip"),
    "platform --help": ("-m", "anychip", "--help"),
    "platform validate": ("-m", "anychip", "validate", str(QUICKSTART)),
}
SHAPE_RECIPE = """
version: 1
name: shape
model: {{source: {folder}, context_length: 4096}}
backend: {{name: cpu}}
memory: {{kv_tokens: 16384}}
"""


class Times(NamedTuple):
    wall_s: float
    cpu_s: float


def command_times(arguments: Sequence[str]) -> Times:
    """One run of a Python command line."""
    before, started_s = os.times(), time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    wall_s, after = time.perf_counter() - started_s, os.times()
    return Times(wall_s, after.children_user + after.children_system - before.children_user - before.children_system)


def service_times(recipe: str) -> Times:
    """From the start of a service's process until /health says ready."""
    with tempfile.TemporaryDirectory() as folder, running(recipe, Path(folder)) as service:
        return Times(service.ready_s, service.cpu_s)


def show(name: str, times: Sequence[Times]) -> None:
    cells = "".join(f"{f'{min(one):.3f} / {statistics.median(one):.3f}':>20}" for one in zip(*times, strict=True))
    print(f"{name:<28}{cells}", flush=True)


def make_shape(folder: Path) -> str:
    """A recipe of Qwen3-0.6B's shape with random weights, and a tokenizer of single bytes."""
    from throughput import make_checkpoint
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    make_checkpoint(folder)
    letters = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=letters, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    recipe = folder / "recipe.yaml"
    recipe.write_text(SHAPE_RECIPE.format(folder=folder))
    return str(recipe)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default=str(QUICKSTART))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--services", type=int, default=3, help="starts of each service")
    parser.add_argument("--shape", action="store_true", help="also a service of Qwen3-0.6B's shape")
    options = parser.parse_args()
    print(f"{'seconds (least / median)':<28}{'wall':>20}{'CPU':>20}")
    for name, arguments in COMMANDS.items():
        show(name, [command_times(arguments) for _ in range(options.repeats + 1)][1:])
    with tempfile.TemporaryDirectory() as folder:
        recipes = {Path(options.recipe).stem: options.recipe}
        if options.shape:
            recipes["Qwen3-0.6B's shape"] = make_shape(Path(folder))
        for name, recipe in recipes.items():
            show(f"service of {name}", [service_times(recipe) for _ in range(options.services + 1)][1:])


if __name__ == "__main__":
    main()
