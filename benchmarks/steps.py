"""Time decode steps, and how much of them each kind of kernel takes. Knows the core; knows no server.

    env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE python benchmarks/steps.py [--recipe recipes/quickstart.yaml]

Without a recipe the model has Qwen3-0.6B's shape and random bfloat16 weights. All requests decode greedily behind
random prompts; medians over the steps in which all of them do. The prompts' own time is that of the first steps.
Kernels are told apart where steps are native programs; else all of them count as the rest. On a shared machine, put
`chrt -r 10` in front (as root).
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import torch
from throughput import make_checkpoint, make_engine

from anychip.engine.core import EngineCore, build_core
from anychip.engine.request import GenerateRequest, SamplingParams
from anychip.graph.codegen import Generated
from anychip.recipe import load
from anychip_cpu.programs import Compiled
from anychip_cpu.programs.program import Kind

TIMED_STEPS = 5


class Timing(NamedTuple):
    """Milliseconds of one decode step, of its matrix products and its attention, and of all prompts."""

    step_ms: float
    products_ms: float
    attention_ms: float
    prompts_ms: float


def measure(core: EngineCore, requests: int, prompt_tokens: int, output_tokens: int) -> Timing:
    numbers = random.Random(requests)
    vocab = core.plan.model.config.vocab_size
    params = SamplingParams(temperature=0.0, max_tokens=output_tokens, ignore_eos=True)
    for index in range(requests):
        prompt = [numbers.randrange(vocab) for _ in range(prompt_tokens)]
        core.add(GenerateRequest(f"{requests}-{index}", prompt, params))
    decodes: list[float] = []
    prompts_s = 0.0
    while core.has_work and len(decodes) < output_tokens // 2:
        started_s = time.perf_counter()
        events = core.step()
        took_s = time.perf_counter() - started_s
        if len(events) == requests and all(event.completion_tokens > 1 for event in events):
            decodes.append(took_s)
        else:
            prompts_s += took_s
    seconds = timed_steps(core)
    while core.has_work:
        core.step()
    core.flush_cache()
    products_s, attention_s = float(seconds[Kind.MULTIPLY]), float(seconds[Kind.ATTEND])
    return Timing(1e3 * statistics.median(decodes), 1e3 * products_s, 1e3 * attention_s, 1e3 * prompts_s)


def timed_steps(core: EngineCore) -> torch.Tensor:
    """Seconds of one step by kind of instruction; zeros where no part of a step is a native program."""
    seconds = torch.zeros(len(Kind), dtype=torch.float64)
    pieces = native_pieces(core)
    for piece in pieces:
        piece.program.seconds = seconds
    for _ in range(TIMED_STEPS if pieces else 0):
        core.step()
    for piece in pieces:
        piece.program.seconds = None
    return seconds / TIMED_STEPS


def native_pieces(core: EngineCore) -> list[Compiled]:
    """The pieces of the forward that are native programs: its generated code has them as global names."""
    generated = getattr(core._model.forward, "__self__", None)
    names = generated.function.__globals__ if isinstance(generated, Generated) else {}
    return [one for one in names.values() if isinstance(one, Compiled)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", help="a recipe instead of Qwen3-0.6B's shape")
    parser.add_argument("--model", type=Path, help="a checkpoint of that shape; made in a temporary folder by default")
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 8, 16])
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        if options.recipe:
            core = build_core(load(options.recipe).recipe, lambda *_: None)
        else:
            directory = options.model or Path(temporary)
            if not (directory / "config.json").exists():
                make_checkpoint(directory)
            core = make_engine(directory, options.threads)
    try:
        print(f"{core.plan.model.served_name}, {torch.get_num_threads()} threads, {options.prompt_tokens} tokens in")
        print(
            f"{'requests':>8} {'decode ms':>10} {'products ms':>12} {'attention ms':>13} {'rest ms':>8} "
            f"{'tok/s':>7} {'prompts ms':>11}"
        )
        measure(core, 1, 64, 16)
        for requests in options.requests:
            found = measure(core, requests, options.prompt_tokens, options.output_tokens)
            rest_ms = found.step_ms - found.products_ms - found.attention_ms
            print(
                f"{requests:>8} {found.step_ms:>10.2f} {found.products_ms:>12.2f} {found.attention_ms:>13.2f} "
                f"{rest_ms:>8.2f} {1e3 * requests / found.step_ms:>7.1f} {found.prompts_ms:>11.0f}",
                flush=True,
            )
    finally:
        core.close()


if __name__ == "__main__":
    main()
