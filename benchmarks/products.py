"""Time products with packed bfloat16, int8 and int4 weights beside each other. Knows the CPU backend; knows no engine.

    python benchmarks/products.py --rows 1,16,64,256

Shapes of Qwen3-0.6B's MLP. One thread and its processor time, the least of some, so that a busy machine disturbs
little; weights rotate, so that they come from memory as in a model.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from anychip_cpu import native
from anychip_cpu.kernels import packed
from anychip_cpu.kernels.quantized import Products, prepare

SHAPES = ((6144, 1024), (1024, 3072))  # outputs, columns
COPIES_BYTES = 60 << 20
ROUNDS = 5


def kernels(products: Products, outputs: int, columns: int) -> dict[str, Callable[[torch.Tensor], object]]:
    """Label -> one product with each of the copies of a weight."""
    copies = range(max(2, COPIES_BYTES // (2 * outputs * columns)))
    weight = torch.randn(outputs, columns) * columns**-0.5
    levels = torch.randint(-127, 128, (outputs, columns)).to(torch.int8)
    bytes_ = torch.randint(256, (outputs, columns // 2)).to(torch.uint8)
    plain = [packed.pack(weight.bfloat16()) for _ in copies]
    rows = [[prepare(one).value for one in (levels, torch.ones(outputs, 1))] for _ in copies]
    groups = [[prepare(one).value for one in (levels, torch.ones(outputs, columns // 32))] for _ in copies]
    half = torch.ones(outputs, columns // 32).half()
    four = [[prepare(one).value for one in (bytes_, half, -8 * half)] for _ in copies]
    return {
        "bfloat16": lambda x: [packed.multiply(x, one) for one in plain],
        "int8": lambda x: [products.linear_int8(x, *one) for one in rows],
        "int8, groups of 32": lambda x: [products.linear_int8(x, *one) for one in groups],
        "int4": lambda x: [products.linear_int4(x, *one[:2]) for one in four],
        "int4 with a minimum": lambda x: [products.linear_int4(x, *one) for one in four],
    }


def least_s(run: Callable[[torch.Tensor], object], x: torch.Tensor) -> float:
    run(x)
    times = []
    for _ in range(ROUNDS):
        started_s = time.thread_time()
        run(x)
        times.append(time.thread_time() - started_s)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description="Time products with integer weights.")
    parser.add_argument("--rows", default="1,4,16,64,256", help="rows of activations, with commas")
    rows = [int(one) for one in parser.parse_args().rows.split(",")]
    library = native.library()
    if isinstance(library, native.Absent):
        parser.error(f"native kernels: {library}")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for outputs, columns in SHAPES:
        found = kernels(Products(library), outputs, columns)
        copies = max(2, COPIES_BYTES // (2 * outputs * columns))
        for count in rows:
            x = torch.randn(count, columns).bfloat16()
            times_s = {name: least_s(run, x) / copies for name, run in found.items()}
            base_s = times_s["bfloat16"]
            cells = (f"{name} {1e6 * one:.0f} us ({base_s / one:.2f}x)" for name, one in times_s.items())
            print(f"{outputs} x {columns}, {count} rows: " + ", ".join(cells))


if __name__ == "__main__":
    main()
