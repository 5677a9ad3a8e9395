"""Time one layer's mixture of experts against what memory allows. Knows the CPU backend; knows no engine.

    python benchmarks/mixtures.py --rows 1,4,16,512

The shapes of Qwen3-30B-A3B and DeepSeek-V2-Lite. As many layers as are more than any cache holds take turns, and each
time rows go to other experts, drawn evenly. The roofline reads the distinct experts' weights as they are held once, at
the rate at which memory is read now, or multiplies at the rate of the fastest products measured now, whichever takes
longer.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from typing import NamedTuple

import roofline
import torch

from anychip_cpu import native
from anychip_cpu.kernels import experts

ROTATED_BYTES = 1 << 30
ROUNDS = 15
LEAST_S = 1.0  #: that a side is timed for


class Shape(NamedTuple):
    experts: int
    chosen: int
    hidden: int
    inner: int


SHAPES = {"qwen3-30b-a3b": Shape(128, 8, 2048, 768), "deepseek-v2-lite": Shape(64, 6, 2048, 1408)}
OPS = {"bfloat16": "moe_experts", "int8": "moe_experts_int8", "int4": "moe_experts_int4", "float32": "moe_experts"}


class Layer(NamedTuple):
    mixture: experts.Mixture
    expert_bytes: float  #: of one expert's weights, as they are held


def layer(shape: Shape, form: str) -> Layer:
    """Random weights, made and packed expert by expert; integers have a scale for every 32 numbers."""
    gate_up, gate_up_bytes = matrices(shape, form, "gate_up", 2 * shape.inner, shape.hidden)
    down, down_bytes = matrices(shape, form, "down", shape.hidden, shape.inner)
    mixture = experts.Mixture(gate_up, down, "silu", is_on_input=False, first=0)
    return Layer(mixture, (gate_up_bytes + down_bytes) / shape.experts)


def matrices(shape: Shape, form: str, place: str, rows: int, columns: int) -> tuple[experts.Matrices, int]:
    op, size = OPS[form], (shape.experts, rows, columns)
    if form in ("bfloat16", "float32"):
        weight = torch.empty(size, dtype=getattr(torch, form)).normal_(std=columns**-0.5)
        made = [experts.prepare(f"{place}_weight", weight, op)]
    else:
        packed = 2 if form == "int4" else 1
        levels = torch.randint(0, 255, (shape.experts, rows, columns // packed), dtype=torch.uint8)
        scale = torch.full((shape.experts, rows, columns // 32), columns**-0.5 / 64)
        held = (levels, scale.half()) if form == "int4" else (levels.view(torch.int8), scale)
        names = zip(("weight", "scale"), held, strict=True)
        made = [experts.prepare(f"{place}_{name}", one, op) for name, one in names]
    return experts.Matrices(*(one.value for one in made)), sum(one.nbytes for one in made)


class Round(NamedTuple):
    x: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor
    distinct: int


def rounds(shape: Shape, rows: int, dtype: torch.dtype) -> Iterator[Round]:
    """Rows and their experts, other ones each time."""
    while True:
        ids = torch.rand(rows, shape.experts).topk(shape.chosen).indices.to(torch.int32)
        weights = torch.full(ids.shape, 1 / shape.chosen)
        yield Round(torch.randn(rows, shape.hidden).to(dtype), ids, weights, len(ids.unique()))


class Timed(NamedTuple):
    seconds: float  #: median
    roofline_s: float  #: of as many distinct experts as there were, on average
    distinct: float


def timed(library: native.Library, layers: list[Layer], shape: Shape, form: str, rows: int, peak: Peak) -> Timed:
    dtype = torch.float32 if form == "float32" else torch.bfloat16
    taken_s, least_s, distinct = [], [], []
    drawn = rounds(shape, rows, dtype)
    began_s = time.perf_counter()
    while len(taken_s) < ROUNDS or time.perf_counter() - began_s < LEAST_S:
        one, given = layers[len(taken_s) % len(layers)], next(drawn)
        started_s = time.perf_counter()
        experts.mixed(library, given.x, given.ids, given.weights, one.mixture)
        taken_s.append(time.perf_counter() - started_s)
        operations = 6 * rows * shape.chosen * shape.hidden * shape.inner
        least_s.append(max(given.distinct * one.expert_bytes / peak.bytes_per_s, operations / peak.operations_per_s))
        distinct.append(given.distinct)
    return Timed(statistics.median(taken_s), statistics.mean(least_s), statistics.mean(distinct))


class Peak(NamedTuple):
    bytes_per_s: float
    operations_per_s: float


def peak_of(machine: roofline.Machine, form: str) -> Peak:
    """float32 is bound by memory at any number of rows that is measured."""
    speeds = {"bfloat16": machine.flops_per_s, "float32": float("inf")}
    return Peak(machine.bytes_per_s, speeds.get(form, machine.int8_ops_per_s))


def main() -> None:
    parser = argparse.ArgumentParser(description="Time one layer's mixture of experts.")
    parser.add_argument("--rows", default="1,4,16,512", help="rows of activations, with commas")
    parser.add_argument("--model", choices=SHAPES, help="its shape only")
    parser.add_argument("--forms", default="bfloat16,int8", help=", ".join(OPS))
    parser.add_argument("--without-tiles", action="store_true", help="bfloat16 without AMX")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    library = native.library()
    if isinstance(library, native.Absent):
        parser.error(f"native kernels: {library}")
    library.use_tiles(not options.without_tiles)
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    for name in [name for name in SHAPES if options.model in (None, name)]:
        for form in options.forms.split(","):
            layers = [layer(SHAPES[name], form)]
            while sum(one.expert_bytes for one in layers) * SHAPES[name].experts < ROTATED_BYTES:
                layers.append(layer(SHAPES[name], form))
            peak = peak_of(roofline.measure(), form)
            print(f"{name}, {form}: memory {peak.bytes_per_s / 1e9:.1f} GB/s, {peak.operations_per_s / 1e9:.0f} G/s")
            for rows in map(int, options.rows.split(",")):
                found = timed(library, layers, SHAPES[name], form, rows, peak)
                share = found.roofline_s / found.seconds
                cells = f"{1e3 * found.seconds:.2f} ms, {found.distinct:.0f} experts, {share:.0%} of the roofline"
                print(f"  {rows} rows: {cells}", flush=True)


if __name__ == "__main__":
    main()
