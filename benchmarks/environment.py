"""Compare variables of the worker's environment by decode steps, in processes that take turns. Knows no variable.

    python benchmarks/environment.py THP_MEM_ALLOC_ENABLE=1 GOMP_SPINCOUNT=100000 [--rounds 4] [--model FOLDER]

Each argument is a setting (several variables are joined with commas) that is compared with none. The model has
Qwen3-0.6B's shape and random bfloat16 weights. For 1 and 8 running requests it prints the median over all rounds of
each process's median decode step, the ratio to none (above 1 is faster), and the process's peak memory beyond weights
and pool. On a shared machine, put `chrt -r 10` in front (as root).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NONE = "none"
REQUESTS = (1, 8)
STEPS = 40
PROMPT_TOKENS = 256


def measure(model: str) -> dict[str, float]:
    """In a process of its own: milliseconds of decode steps, and the memory that nobody planned."""
    from throughput import make_engine

    from anychip.engine.request import GenerateRequest, SamplingParams

    core = make_engine(Path(model), len(os.sched_getaffinity(0)))
    found: dict[str, float] = {}
    for count in REQUESTS:
        params = SamplingParams(temperature=0.0, max_tokens=STEPS, ignore_eos=True)
        for number in range(count):
            prompt = [(97 * number + 13 * place) % 100000 for place in range(PROMPT_TOKENS)]
            core.add(GenerateRequest(f"{count}-{number}", prompt, params))
        times = []
        while core.has_work:
            started_s = time.perf_counter()
            events = core.step()
            if len(events) == count and events[0].completion_tokens > 1:
                times.append(1e3 * (time.perf_counter() - started_s))
        found[str(count)] = statistics.median(times)
        core.flush_cache()
    memory = core.plan.memory
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    found["beyond_gib"] = (peak - memory.weights - memory.kv_pool) / 2**30
    core.close()
    return found


def run(setting: str, model: str) -> dict[str, float]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OPENBLAS_")}
    if setting != NONE:
        environ.update(one.split("=", 1) for one in setting.split(","))
    command = [sys.executable, __file__, "--measure", "--model", model]
    output = subprocess.run(command, env=environ, check=True, capture_output=True, text=True).stdout
    result: dict[str, float] = json.loads(output.splitlines()[-1])
    return result


def compare(settings: list[str], model: str, rounds: int) -> None:
    found: dict[str, list[dict[str, float]]] = {setting: [] for setting in settings}
    for number in range(rounds):
        order = settings if number % 2 == 0 else settings[::-1]
        for setting in order:
            found[setting].append(run(setting, model))
    columns = "".join(f"{f'{count}: step ms':>14}{'ratio':>8}" for count in REQUESTS)
    print(f"{'setting':<44}{columns}{'GiB beyond weights + pool':>28}")
    medians = {
        setting: {key: statistics.median(one[key] for one in runs) for key in runs[0]}
        for setting, runs in found.items()
    }
    for setting, median in medians.items():
        cells = "".join(
            f"{median[key]:>14.2f}{medians[NONE][key] / median[key]:>8.2f}"
            for key in (str(count) for count in REQUESTS)
        )
        print(f"{setting:<44}{cells}{median['beyond_gib']:>28.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", metavar="NAME=VALUE[,NAME=VALUE]")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--model", help="a checkpoint of the shape; made in a temporary folder by default")
    parser.add_argument(
        "--measure", action="store_true", help="measure in this process, as the processes that it starts do"
    )
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.model)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        model = options.model or temporary
        if not (Path(model) / "config.json").exists():
            from throughput import make_checkpoint

            make_checkpoint(Path(model))
        compare([NONE, *options.settings], model, options.rounds)


if __name__ == "__main__":
    main()
