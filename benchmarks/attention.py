"""Time the native paged attention beside torch's gathered one at Qwen3-0.6B's shape. Knows no engine.

    python benchmarks/attention.py [--dtype bfloat16] [--page-size 16] [--kernels avx512]

For each step, milliseconds of all of the model's layers: the median of interleaved calls that go round several
layers' caches, so that keys come from memory as in a model. GB/s counts the keys and values that a step reads, those
that decodes share ("behind") once.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from anychip_cpu import native
from anychip_cpu.device import CpuDevice
from anychip_cpu.kernels.attention import PagedAttention
from anychip_sdk.step import Step, StepLimits
from anychip_sdk.testing import random_step

HEADS, KV_HEADS, HEAD_DIM, MODEL_LAYERS = 16, 8, 128, 28
SCALE = HEAD_DIM**-0.5
OWN = 64  #: tokens of a request behind a prefix
CACHE_BYTES = 1 << 30  # of all layers together, more than any processor caches
#: what is made of a step for all layers, and a layer's attention with that in the step's place
Attention = tuple[Callable[[Step], Any], Callable[..., torch.Tensor]]


class Rows(NamedTuple):
    """One forward's rows."""

    name: str
    decode: tuple[int, ...]
    prefill: tuple[tuple[int, int], ...]
    shared: int = 0  #: tokens with which all decodes begin

    @property
    def tokens(self) -> int:
        return len(self.decode) + sum(length for length, _ in self.prefill)

    @property
    def keys(self) -> int:
        """That are read: shared ones once."""
        again = self.shared * max(len(self.decode) - 1, 0)
        return sum(self.decode) + sum(context for _, context in self.prefill) - again


def steps(rows: list[int], contexts: list[int], prompts: list[int]) -> list[Rows]:
    decodes = [Rows(f"decode {count} x {context}", (context,) * count, ()) for context in contexts for count in rows]
    prefills = [Rows(f"prefill {length}", (), ((length, length),)) for length in prompts]
    shared = [
        Rows(f"decode {count} behind {context}", (context + OWN,) * count, (), context)
        for context in contexts
        for count in rows
        if count > 1
    ]
    cached = [Rows(f"prefill {OWN} behind {context}", (), ((OWN, OWN + context),)) for context in contexts]
    return [*decodes, *shared, *prefills, *cached]


def layers(rows: Rows, page_size: int, dtype: torch.dtype) -> tuple[Step, list[tuple[torch.Tensor, ...]]]:
    """The step and each layer's queries, keys and values; the layers' pages are scattered alike."""
    generator = torch.Generator().manual_seed(0)
    pages = sum(-(-context // page_size) for context in (*rows.decode, *(c for _, c in rows.prefill)))
    step = random_step(generator, page_size, pages, rows.decode, rows.prefill)
    table = step.paged(0).page_table
    table[: len(rows.decode), : rows.shared // page_size] = table[0, : rows.shared // page_size]
    shape = (pages, page_size, KV_HEADS, HEAD_DIM)
    per_layer = 2 * pages * page_size * KV_HEADS * HEAD_DIM * dtype.itemsize
    count = max(2, min(MODEL_LAYERS, CACHE_BYTES // per_layer))
    slab = CpuDevice().alloc(count * per_layer).view(dtype).view(count, 2, *shape)
    slab.copy_(torch.randn(slab[0].shape))
    q = torch.randn(rows.tokens, HEADS, HEAD_DIM).to(dtype)
    return step, [(q, layer[0], layer[1]) for layer in slab]


def measure(kernels: dict[str, Attention], rows: Rows, options: argparse.Namespace) -> dict[str, float]:
    """Kernel -> milliseconds of the model's layers."""
    dtype: torch.dtype = getattr(torch, options.dtype)
    step, caches = layers(rows, options.page_size, dtype)
    times: dict[str, list[float]] = {name: [] for name in kernels}
    started = time.perf_counter()
    while time.perf_counter() - started < options.seconds or len(times[next(iter(kernels))]) < 3:
        for name, (prepare, kernel) in kernels.items():
            before = time.perf_counter()
            prepared = prepare(step)
            for q, k, v in caches:
                kernel(q, k, v, prepared, SCALE, None)
            times[name].append((time.perf_counter() - before) / len(caches))
    return {name: statistics.median(found[1:] or found) * MODEL_LAYERS * 1e3 for name, found in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32", "float16"))
    parser.add_argument("--page-size", type=int, default=16)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=0.5, help="time for each step")
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 4, 8, 16])
    parser.add_argument("--contexts", type=int, nargs="*", default=[256, 512, 2048])
    parser.add_argument("--prompts", type=int, nargs="*", default=[256, 512, 2048])
    parser.add_argument("--kernels", help="an instruction set other than the best: portable, avx2, avx512, avx512_bf16")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    library = native.library()
    if isinstance(library, native.Absent):
        raise SystemExit(f"native kernels: {library}")
    if options.kernels and not library.choose(options.kernels):
        raise SystemExit(f"no {options.kernels} kernels here")
    gathered = PagedAttention()
    facts = {"heads": HEADS, "kv_heads": KV_HEADS, "head_dim": HEAD_DIM, "dtype": options.dtype}
    limits = StepLimits(0, 0, 0, torch.device("cpu"))
    found: dict[str, Attention] = {
        "gathered": (gathered.make(facts, {}, limits), gathered),
        "native": native_attention(library, getattr(torch, options.dtype)),
    }
    machine = f"{options.threads} threads, {library.kernels}"
    print(f"{options.dtype}, pages of {options.page_size}, {MODEL_LAYERS} layers, {machine}")
    print(f"{'':24}{'gathered ms':>14}{'native ms':>12}{'ratio':>8}{'GB/s':>8}")
    with torch.inference_mode():
        for rows in steps(options.rows, options.contexts, options.prompts):
            times = measure(found, rows, options)
            item = getattr(torch, options.dtype).itemsize
            read = 2 * rows.keys * KV_HEADS * HEAD_DIM * item * MODEL_LAYERS / times["native"] / 1e6
            ratio = times["gathered"] / times["native"]
            print(f"{rows.name:24}{times['gathered']:14.2f}{times['native']:12.2f}{ratio:8.1f}{read:8.1f}", flush=True)


def native_attention(library: native.Library, dtype: torch.dtype) -> Attention:
    """Every row through the native kernel, whatever the backend would choose for it."""
    heads = native.Heads(dtype, HEADS, KV_HEADS, HEAD_DIM)

    def attend(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, call: native.AttentionCall, scale: float, window: int | None
    ) -> torch.Tensor:
        out = torch.empty(q.shape, dtype=q.dtype)
        call(out, q, k, v, scale, window)
        return out

    return lambda step: native.AttentionCall(library, step, 0, heads, step.rows), attend


if __name__ == "__main__":
    main()
