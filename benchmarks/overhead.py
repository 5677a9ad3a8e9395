"""Time what the engine does besides the forward, per step, with 16 requests running. Knows the core; knows no server.

    python benchmarks/overhead.py [--recipe recipes/quickstart.yaml] [--requests 16] [--tokens 64]

Prints, for greedy requests, for drawn ones and for such with penalties: milliseconds per decode step, how much of it is
the forward, and the rest, which is scheduling, building tensors, sampling and committing. The rest is what the engine
costs: under 2 ms at 16 greedy requests is the aim. Numbers mean something only on an idle machine.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import NamedTuple

from anychip.engine.core import EngineCore, build_core
from anychip.engine.request import GenerateRequest, SamplingParams
from anychip.recipe import load

ROOT = Path(__file__).parents[1]
KINDS = {
    "greedy": {"temperature": 0.0},
    "drawn": {"temperature": 0.8, "top_p": 0.95, "top_k": 50, "seed": 0},
    "penalties": {"temperature": 0.0, "repetition_penalty": 1.1, "frequency_penalty": 0.1},
}


class Step(NamedTuple):
    """One decode step, in seconds."""

    whole_s: float
    forward_s: float

    @property
    def rest_s(self) -> float:
        return self.whole_s - self.forward_s


def measure(core: EngineCore, kind: str, requests: int, tokens: int) -> list[Step]:
    """Steps in which all requests decode; the prompts differ, so that nothing is shared."""
    vocab = core.plan.model.config.vocab_size
    params = SamplingParams(**KINDS[kind], max_tokens=tokens, ignore_eos=True)
    for number in range(requests):
        prompt = [(97 * number + 13 * place) % vocab for place in range(64)]
        core.add(GenerateRequest(f"{kind}-{number}", prompt, params))
    steps = []
    while core.has_work:
        before = core.stats()
        started_s = time.perf_counter()
        events = core.step()
        whole_s = time.perf_counter() - started_s
        is_decode = len(events) == requests and events[0].completion_tokens > 1
        if is_decode and core.has_work:
            steps.append(Step(whole_s, core.stats()["forward_seconds"] - before["forward_seconds"]))
    core.flush_cache()
    return steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default=str(ROOT / "recipes" / "quickstart.yaml"))
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args()
    core = build_core(load(options.recipe).recipe, lambda *_: None)
    try:
        plan = core.plan
        print(f"{plan.model.served_name}, {options.requests} requests, backend {plan.backend.name}")
        print(f"{'':<10} {'steps':>6} {'step ms':>9} {'forward ms':>11} {'rest ms':>9} {'rest p95':>9}")
        for kind in KINDS:
            steps = measure(core, kind, options.requests, options.tokens)
            rest = sorted(step.rest_s for step in steps)
            whole, forward = (statistics.median(column) for column in zip(*steps, strict=True))
            print(
                f"{kind:<10} {len(steps):>6} {1e3 * whole:>9.2f} {1e3 * forward:>11.2f} "
                f"{1e3 * statistics.median(rest):>9.2f} {1e3 * rest[int(0.95 * len(rest))]:>9.2f}"
            )
    finally:
        core.close()


if __name__ == "__main__":
    main()
