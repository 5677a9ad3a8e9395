"""Time the native paged attention beside torch's gathered one at a model's shape. Knows no engine.

    python benchmarks/attention.py [--shape smollm2-135m] [--dtype bfloat16] [--page-size 16] [--kernels avx512]
    python benchmarks/attention.py --beside build/other.so [--cached] [--threads 1]

For each step, milliseconds of all of the model's layers: the median of interleaved calls that go round several
layers' caches, so that keys come from memory as in a model. GB/s counts the keys and values that a step reads, those
that decodes share ("behind") once; `of memory` is what that is of the speed at which huge pages are read in order.
`--cached` goes over one layer again and again: what remains for short steps is arithmetic. `--beside` takes turns with
another build of the library in torch's place.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import roofline
import torch

from anychip_cpu import native
from anychip_cpu.device import CpuDevice
from anychip_cpu.kernels.attention import PagedAttention
from anychip_sdk.step import Step, StepLimits
from anychip_sdk.testing import random_step

OWN = 64  #: tokens of a request behind a prefix
CACHE_BYTES = 1 << 30  # of all layers together, more than any processor caches
MEASURED_LAYERS = 8  #: times the model's, at most: few tokens of a small model would stay in a cache
#: what is made of a step for all layers, and a layer's attention with that in the step's place
Attention = tuple[Callable[[Step], Any], Callable[..., torch.Tensor]]


class Shape(NamedTuple):
    """A model's attention."""

    heads: int
    kv_heads: int
    head_dim: int
    layers: int


SHAPES = {"qwen3-0.6b": Shape(16, 8, 128, 28), "smollm2-135m": Shape(9, 3, 64, 30)}


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


def layers(rows: Rows, options: argparse.Namespace) -> tuple[Step, list[tuple[torch.Tensor, ...]]]:
    """The step and each layer's queries, keys and values; the layers' pages are scattered alike."""
    heads, kv_heads, head_dim, model_layers = SHAPES[options.shape]
    dtype: torch.dtype = getattr(torch, options.dtype)
    page_size: int = options.page_size
    generator = torch.Generator().manual_seed(0)
    pages = sum(-(-context // page_size) for context in (*rows.decode, *(c for _, c in rows.prefill)))
    step = random_step(generator, page_size, pages, rows.decode, rows.prefill)
    table = step.paged(0).page_table
    table[: len(rows.decode), : rows.shared // page_size] = table[0, : rows.shared // page_size]
    shape = (pages, page_size, kv_heads, head_dim)
    per_layer = 2 * pages * page_size * kv_heads * head_dim * dtype.itemsize
    count = 1 if options.cached else max(2, min(MEASURED_LAYERS * model_layers, CACHE_BYTES // per_layer))
    slab = CpuDevice().alloc(count * per_layer).view(dtype).view(count, 2, *shape)
    slab.copy_(torch.randn(slab[0].shape))
    q = torch.randn(rows.tokens, heads, head_dim).to(dtype)
    return step, [(q, layer[0], layer[1]) for layer in slab] * (model_layers if options.cached else 1)


def measure(kernels: dict[str, Attention], rows: Rows, options: argparse.Namespace) -> dict[str, float]:
    """Kernel -> milliseconds of the model's layers."""
    shape = SHAPES[options.shape]
    step, caches = layers(rows, options)
    times: dict[str, list[float]] = {name: [] for name in kernels}
    started = time.perf_counter()
    while time.perf_counter() - started < options.seconds or len(times[next(iter(kernels))]) < 3:
        for name, (prepare, kernel) in kernels.items():
            before = time.perf_counter()
            prepared = prepare(step)
            for q, k, v in caches:
                kernel(q, k, v, prepared, shape.head_dim**-0.5, None)
            times[name].append((time.perf_counter() - before) / len(caches))
    return {name: statistics.median(found[1:] or found) * shape.layers * 1e3 for name, found in times.items()}


def main() -> None:
    options = parsed()
    torch.set_num_threads(options.threads)
    library = opened(native.library(), options.kernels)
    dtype: torch.dtype = getattr(torch, options.dtype)
    shape = SHAPES[options.shape]
    heads = native.Heads(dtype, *shape[:3])
    other = "gathered"
    found: dict[str, Attention] = {}
    if options.beside:
        other = "other"
        beside = opened(native.load(options.beside, options.beside.parent / "no sources"), options.kernels)
        found[other] = native_attention(beside, heads)
    else:
        gathered = PagedAttention()
        facts = {**shape._asdict(), "dtype": options.dtype}
        found[other] = gathered.make(facts, {}, StepLimits(0, 0, 0, torch.device("cpu"))), gathered
    found["native"] = native_attention(library, heads)
    machine = f"{options.threads} threads, {library.kernels}"
    memory = roofline.read_bytes_per_s() / 1e9
    print(f"{options.shape}, {options.dtype}, pages of {options.page_size}, {shape.layers} layers, {machine}")
    print(f"memory gives {memory:.1f} GB/s")
    print(f"{'':24}{f'{other} ms':>14}{'native ms':>12}{'ratio':>8}{'GB/s':>8}{'of memory':>11}")
    with torch.inference_mode():
        for rows in steps(options.rows, options.contexts, options.prompts):
            times = measure(found, rows, options)
            bytes_each = 2 * shape.kv_heads * shape.head_dim * dtype.itemsize * shape.layers
            read = rows.keys * bytes_each / times["native"] / 1e6
            ratio = times[other] / times["native"]
            figures = f"{times[other]:14.2f}{times['native']:12.2f}{ratio:8.2f}{read:8.1f}{read / memory:11.0%}"
            print(f"{rows.name:24}{figures}", flush=True)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default="qwen3-0.6b", choices=SHAPES)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32", "float16"))
    parser.add_argument("--page-size", type=int, default=16)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=0.5, help="time for each step")
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 4, 8, 16])
    parser.add_argument("--contexts", type=int, nargs="*", default=[256, 512, 2048])
    parser.add_argument("--prompts", type=int, nargs="*", default=[256, 512, 2048])
    parser.add_argument("--kernels", help="an instruction set other than the best: portable, avx2, avx512, avx512_bf16")
    parser.add_argument("--cached", action="store_true", help="one layer's keys and values only")
    parser.add_argument("--beside", type=Path, metavar="LIBRARY", help="another build, in the place of torch")
    return parser.parse_args()


def opened(library: native.Library | native.Absent, kernels: str | None) -> native.Library:
    if isinstance(library, native.Absent):
        raise SystemExit(f"native kernels: {library}")
    if kernels and not library.choose(kernels):
        raise SystemExit(f"no {kernels} kernels here")
    return library


def native_attention(library: native.Library, heads: native.Heads) -> Attention:
    """Every row through the native kernel, whatever the backend would choose for it."""

    def attend(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, call: native.AttentionCall, scale: float, window: int | None
    ) -> torch.Tensor:
        out = torch.empty(q.shape, dtype=q.dtype)
        call(out, q, k, v, native.Scores(scale, window))
        return out

    return lambda step: native.AttentionCall(library, step, 0, heads, step.rows), attend


if __name__ == "__main__":
    main()
