"""Throughput of the engine beside transformers' `generate`, in one process and one run, taking turns.

    env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE python benchmarks/throughput.py [--output results.json]

The model has Qwen3-0.6B's shape and random bfloat16 weights; prompts are random token ids, new ones for every
repetition so that no cache helps; end-of-sequence is ignored; decoding is greedy. Both sides run with the same number
of threads. On a shared machine, put `chrt -r 10` in front (as root): a neighbour that takes a core makes every
parallel kernel wait for its other half.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

from anychip.engine.core import EngineCore, build_core
from anychip.engine.request import GenerateRequest, SamplingParams
from anychip.recipe.schema import Recipe

Generate = Callable[[list[list[int]], int], None]


def make_checkpoint(directory: Path) -> None:
    """Qwen3-0.6B's shape with random weights, as a Hugging Face directory."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=151936,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=40960,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        bos_token_id=151643,
        eos_token_id=151645,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
        dtype="bfloat16",
    )
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(directory)


def make_engine(directory: Path, threads: int) -> EngineCore:
    recipe = Recipe.model_validate(
        {
            "version": 1,
            "name": "throughput",
            "model": {"source": str(directory), "context_length": 4096},
            "backend": {"name": "cpu", "threads": threads},
            "memory": {"kv_tokens": 16384},
            "scheduler": {"max_running_requests": 32},
        }
    )
    return build_core(recipe, lambda *_: None)


def ours(core: EngineCore) -> Generate:
    def generate(prompts: list[list[int]], count: int) -> None:
        params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
        for index, prompt in enumerate(prompts):
            core.add(GenerateRequest(f"{index}", prompt, params))
        tokens = 0
        while core.has_work:
            tokens += sum(len(event.token_ids) for event in core.step())
        assert tokens == count * len(prompts), (tokens, count, len(prompts))

    return generate


def theirs(directory: Path) -> Generate:
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16).eval()

    def generate(prompts: list[list[int]], count: int) -> None:
        ids = torch.tensor(prompts)
        with torch.inference_mode():
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=count,
                min_new_tokens=count,
                do_sample=False,
                pad_token_id=0,
            )
        assert out.shape[1] == ids.shape[1] + count

    return generate


def measure(sides: dict[str, Generate], concurrency: int, lengths: tuple[int, int], reps: int) -> dict[str, object]:
    """Output tokens per second of each side: medians over repetitions in which the sides take turns."""
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for rep in range(reps):
        numbers = random.Random(1000 * concurrency + rep)
        prompts = [[numbers.randrange(1000, 40000) for _ in range(lengths[0])] for _ in range(concurrency)]
        for name, generate in sides.items():
            started_s = time.perf_counter()
            generate(prompts, lengths[1])
            rates[name].append(concurrency * lengths[1] / (time.perf_counter() - started_s))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    return {"concurrency": concurrency, "median_tok_s": medians, "tok_s": rates}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--model", type=Path, help="a checkpoint of the shape; made in a temporary folder by default")
    parser.add_argument("--output", type=Path, help="where to write the figures as JSON")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        directory = options.model or Path(temporary)
        if not (directory / "config.json").exists():
            make_checkpoint(directory)
        core = make_engine(directory, options.threads)
        torch.set_num_threads(options.threads)
        sides = {"anychip": ours(core), "transformers": theirs(directory)}
        for generate in sides.values():
            generate([list(range(1000, 1064))] * 2, 4)
        print(f"{'concurrency':>11}  {'anychip':>9}  {'transformers':>12}  ratio   (output tokens per second, medians)")
        rows = []
        for concurrency in options.concurrency:
            row = measure(sides, concurrency, (options.prompt_tokens, options.output_tokens), options.reps)
            rows.append(row)
            medians = row["median_tok_s"]
            assert isinstance(medians, dict)
            mine, other = medians["anychip"], medians["transformers"]
            print(f"{concurrency:>11}  {mine:>9.1f}  {other:>12.1f}  {mine / other:>5.2f}", flush=True)
        stats = core.stats()
        overhead_ms = 1000 * (stats["step_seconds"] - stats["forward_seconds"]) / max(1.0, stats["steps"])
        print(f"engine's own time per step (everything but the forward): {overhead_ms:.2f} ms")
        core.close()
    if options.output:
        options.output.write_text(
            json.dumps({"rows": rows, "overhead_ms": overhead_ms, "stats": stats}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
