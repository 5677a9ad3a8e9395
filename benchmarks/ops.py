"""Time the CPU backend's kernels at the shapes of Qwen3-0.6B, the reference beside them. Knows no engine.

    env -u OPENBLAS_CORETYPE -u OPENBLAS_NUM_THREADS python benchmarks/ops.py --dtype bfloat16 --context 512

Prints one table: milliseconds per call, the fastest of many, for decode steps of 1, 4, 8 and 16 rows and one
prefill chunk. Weights rotate over LAYERS copies, so that they come from memory as in a model. The last lines add up
one step of the whole model. Numbers mean something only on an idle machine.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from itertools import cycle
from typing import Any, NamedTuple

import torch

import anychip_cpu
from anychip_sdk import CATALOGUE, load_backend
from anychip_sdk.registry import Facts, Kernel, OpKey, dtype_name, with_prepared
from anychip_sdk.step import Step
from anychip_sdk.testing import random_step

HIDDEN, INNER, VOCAB, HEADS, KV_HEADS, HEAD_DIM, MODEL_LAYERS = 1024, 3072, 151936, 16, 8, 128, 28
LAYERS = 6
EPS = 1e-6
ROWS = (1, 4, 8, 16)


class Forward(NamedTuple):
    """One forward: its step and how many tokens and rows it has."""

    name: str
    step: Step
    tokens: int
    rows: int


def steps(context: int, chunk: int, page_size: int) -> list[Forward]:
    generator = torch.Generator().manual_seed(0)
    pages = (max(ROWS) * (context + page_size) + chunk) // page_size + 1
    made = []
    for rows in ROWS:
        step = random_step(generator, page_size, pages, [context] * rows, [])
        made.append(Forward(f"decode {rows}", step, rows, rows))
    step = random_step(generator, page_size, pages, [], [(chunk, chunk)])
    return [*made, Forward(f"prefill {chunk}", step, chunk, 1)]


class Model:
    """Random weights and caches of LAYERS layers."""

    def __init__(self, dtype: torch.dtype, pages: int, page_size: int) -> None:
        self.dtype = dtype
        self.table = torch.randn(4096, HEAD_DIM)
        cache = (pages, page_size, KV_HEADS, HEAD_DIM)
        qkv = (HEADS + 2 * KV_HEADS) * HEAD_DIM
        self.caches = [(self.floats(*cache), self.floats(*cache)) for _ in range(LAYERS)]
        self.matrices = {
            "qkv": self.copies(qkv, HIDDEN),
            "out": self.copies(HIDDEN, HEADS * HEAD_DIM),
            "gate_up": self.copies(2 * INNER, HIDDEN),
            "down": self.copies(HIDDEN, INNER),
            "lm_head": [self.floats(VOCAB, HIDDEN)],
        }

    def floats(self, *shape: int) -> torch.Tensor:
        values: torch.Tensor = (torch.randn(shape) * shape[-1] ** -0.5).to(self.dtype)
        return values

    def copies(self, *shape: int) -> list[torch.Tensor]:
        return [self.floats(*shape) for _ in range(LAYERS)]

    def calls(self, forward: Forward) -> dict[str, tuple[str, list[tuple[Any, ...]]]]:
        """Label -> (op, arguments of each layer)."""
        x, wide = self.floats(forward.tokens, HIDDEN), self.floats(forward.tokens, 2 * INNER)
        heads = self.floats(forward.tokens, HEADS + 2 * KV_HEADS, HEAD_DIM)
        q, k, v = heads.split((HEADS, KV_HEADS, KV_HEADS), dim=1)
        norm, head_norm = torch.ones(HIDDEN, dtype=self.dtype), torch.ones(HEAD_DIM, dtype=self.dtype)
        logits = torch.randn(forward.rows, VOCAB) * 3
        settings = (torch.full((forward.rows,), value) for value in (0.7, 0, 0.9, 0.0))
        linear = {
            f"linear {name}": ("linear", [(self.floats(forward.tokens, w.shape[1]), w, None) for w in copies])
            for name, copies in self.matrices.items()
            if name != "lm_head"
        }
        scale = HEAD_DIM**-0.5
        return {
            **linear,
            "lm_head": ("lm_head", [(x[: forward.rows], self.matrices["lm_head"][0])]),
            "rms_norm": ("rms_norm", [(x, norm, EPS)]),
            "add_rms_norm": ("add_rms_norm", [(x, x, norm, EPS)]),
            "qk_norm_rope": ("qk_norm_rope", [(q, k, head_norm, head_norm, EPS, forward.step, self.table)]),
            "silu_mul": ("silu_mul", [wide.chunk(2, dim=-1)]),
            "kv_write": ("kv_write", [(k, v, *cache, forward.step, 0) for cache in self.caches]),
            "paged_attention": (
                "paged_attention",
                [(q, *cache, forward.step, scale, None, 0, None, None) for cache in self.caches],
            ),
            "argmax": ("argmax", [(logits,)]),
            "sample": ("sample", [(logits, *settings, torch.rand(forward.rows, dtype=torch.float64))]),
            "ffn": (
                "ffn",
                [
                    (x, a, None, b, None)
                    for a, b in zip(self.matrices["gate_up"], self.matrices["down"], strict=True)
                ],
            ),
            "mha": (
                "mha",
                [
                    (x, a, None, head_norm, head_norm, EPS, self.table, *cache,
                     forward.step, b, None, HEADS, scale, None, 0)
                    for a, b, cache in zip(self.matrices["qkv"], self.matrices["out"], self.caches, strict=True)
                ],
            ),
        }  # fmt: skip


def best_ms(function: Callable[..., Any], calls: list[tuple[Any, ...]], seconds: float) -> float:
    """The fastest call's milliseconds, going round the layers; the first call of all only warms up."""
    best = float("inf")
    if seconds > 0:
        function(*calls[-1])
    started = time.perf_counter()
    for arguments in cycle(calls):
        before = time.perf_counter()
        function(*arguments)
        now = time.perf_counter()
        best = min(best, now - before)
        if now - started >= seconds:
            return best * 1e3
    return best * 1e3


class Prepared:
    """Weights in the kernels' layout, packed once per matrix and op."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, int], Any] = {}

    def arguments(self, op: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(
            self._one(op, arg.name, value) if arg.weight and isinstance(value, torch.Tensor) else value
            for arg, value in zip(CATALOGUE[op].args, arguments, strict=True)
        )

    def _one(self, op: str, name: str, weight: torch.Tensor) -> Any:
        key = op, weight.data_ptr()
        if key not in self._made:
            prepared = anychip_cpu.anychip_prepare_weight(name, weight, op)
            self._made[key] = weight if prepared is None else prepared.value
        return self._made[key]


def measure(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Label -> step -> milliseconds; the reference's under 'label (reference)'."""
    dtype: torch.dtype = getattr(torch, options.dtype)
    backend = load_backend("cpu", anychip_cpu, distribution="anychip-cpu", version="0")
    forwards = steps(options.context, options.chunk, options.page_size)
    pages = max(int(one.step.paged(0).page_table.max()) for one in forwards) + 1
    model, prepared = Model(dtype, pages, options.page_size), Prepared()
    name = dtype_name(dtype)
    facts: Facts = {"heads": HEADS, "kv_heads": KV_HEADS, "head_dim": HEAD_DIM, "dtype": name, "kv_dtype": name}
    found: dict[str, dict[str, float]] = {}
    for forward in forwards:
        for label, (op, calls) in model.calls(forward).items():
            resolved = backend.ops.resolve(OpKey(op, 1, dtype), facts)
            if resolved is None:
                continue
            ready = [prepared.arguments(op, one) for one in calls] if resolved.kernel.prepares_weight else calls
            run, given = resolved.kernel.function, of_one_step(resolved.kernel, ready, facts)
            found.setdefault(label, {})[forward.name] = best_ms(run, given, options.seconds)
            if options.reference and op not in ("ffn", "mha", "lm_head"):
                reference = best_ms(CATALOGUE[op].reference, calls[:1], 0.0)
                found.setdefault(f"{label} (reference)", {})[forward.name] = reference
    return found


def of_one_step(kernel: Kernel, calls: list[tuple[Any, ...]], facts: Facts) -> list[tuple[Any, ...]]:
    """The layers' arguments as the kernel takes them; what it prepares of the step is made once, as in a model."""
    at = CATALOGUE[kernel.op].step_index
    if at is None:
        return calls
    first = with_prepared(kernel, calls[0], facts)
    return [(*one[:at], first[at], *one[at + 1 :]) for one in calls]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32", "float16"))
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--chunk", type=int, default=512)
    parser.add_argument("--page-size", type=int, default=16)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=0.4, help="time for each cell")
    parser.add_argument("--reference", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with torch.inference_mode():
        found = measure(options)
    names = list(found["rms_norm"])
    print(
        f"ms per call; {options.dtype}, context {options.context}, page {options.page_size}, {options.threads} threads"
    )
    print(f"{'':32}" + "".join(f"{name:>13}" for name in names))
    for label, cells in found.items():
        print(f"{label:32}" + "".join(f"{cells[name]:13.3f}" for name in names))
    whole = [
        MODEL_LAYERS * (found["mha"][name] + found["ffn"][name] + 2 * found["add_rms_norm"][name])
        + found["lm_head"][name]
        for name in names
    ]
    print(f"{'whole step, mha and ffn':32}" + "".join(f"{value:13.1f}" for value in whole))


if __name__ == "__main__":
    main()
