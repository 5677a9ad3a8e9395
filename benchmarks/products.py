"""Time products with packed bfloat16, int8 and int4 weights beside each other. Knows the CPU backend; knows no engine.

    python benchmarks/products.py --rows 1,16,64,256

The matrices of a layer of Qwen3-0.6B and of SmolLM2-135M. The sides take turns, and the least of some rounds counts, so
that a busy machine disturbs little; weights rotate, so that they come from memory as in a model.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from anychip_cpu import native
from anychip_cpu.kernels import dense, packed
from anychip_cpu.kernels.quantized import Products, prepare

#: outputs, columns
SHAPES = {
    "qwen3-0.6b": ((4096, 1024), (1024, 2048), (6144, 1024), (1024, 3072)),
    "smollm2-135m": ((960, 576), (576, 576), (3072, 576), (576, 1536)),
}
BASE = "oneDNN bfloat16"
ROTATED_BYTES = 192 << 20  #: of bfloat16: more than any cache holds
ROUND_S = 0.02  #: at least one product with each copy, else about so long
ROUNDS = 7

Side = Callable[[torch.Tensor], object]


def sides(library: native.Library, outputs: int, columns: int, copies: int) -> dict[str, list[Side]]:
    """Label -> a product with each copy of a weight."""
    products, plain = Products(library), dense.Dense(library)
    weight = (torch.randn(outputs, columns) * columns**-0.5).bfloat16()
    levels = torch.randint(-127, 128, (outputs, columns)).to(torch.int8)
    scale = prepare(torch.ones(outputs, 1)).value
    bytes_ = torch.randint(256, (outputs, columns // 2)).to(torch.uint8)
    half = torch.ones(outputs, columns // 32).half()
    least, ones = prepare(-8 * half).value, prepare(half).value
    groups = prepare(half.float()).value
    names = (BASE, "bfloat16", "int8", "int8, groups of 32", "int4", "int4 with a minimum")
    found: dict[str, list[Side]] = {name: [] for name in names}
    for _ in range(copies):
        blocked, tiled = packed.pack(weight), dense.prepare("weight", weight)
        assert tiled is not None
        eight, four = prepare(levels).value, prepare(bytes_).value
        found[BASE].append(lambda x, w=blocked: packed.multiply(x, w))
        found["bfloat16"].append(lambda x, w=tiled.value: plain.linear(x, w))
        found["int8"].append(lambda x, w=eight: products.linear_int8(x, w, scale))
        found["int8, groups of 32"].append(lambda x, w=eight: products.linear_int8(x, w, groups))
        found["int4"].append(lambda x, w=four: products.linear_int4(x, w, ones))
        found["int4 with a minimum"].append(lambda x, w=four: products.linear_int4(x, w, ones, least))
    return found


def least_s(found: dict[str, list[Side]], x: torch.Tensor) -> dict[str, float]:
    """Seconds of one product on each side."""
    started_s = time.perf_counter()
    for side in found.values():
        side[0](x)
    one_s = (time.perf_counter() - started_s) / len(found)
    at = 0
    least = dict.fromkeys(found, float("inf"))
    for _ in range(ROUNDS):
        count = max(1, min(len(found[BASE]), round(ROUND_S / one_s)))
        for name, side in found.items():
            started_s = time.perf_counter()
            for index in range(at, at + count):
                side[index % len(side)](x)
            least[name] = min(least[name], (time.perf_counter() - started_s) / count)
        at += count
    return least


def main() -> None:
    parser = argparse.ArgumentParser(description="Time products with packed weights.")
    parser.add_argument("--rows", default="1,4,16,64,256", help="rows of activations, with commas")
    parser.add_argument("--model", choices=SHAPES, help="its matrices only")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    library = native.library()
    if isinstance(library, native.Absent):
        parser.error(f"native kernels: {library}")
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    for outputs, columns in [shape for name in SHAPES if options.model in (None, name) for shape in SHAPES[name]]:
        found = sides(library, outputs, columns, ROTATED_BYTES // (2 * outputs * columns))
        for rows in map(int, options.rows.split(",")):
            times_s = least_s(found, torch.randn(rows, columns).bfloat16())
            cells = (f"{name} {1e6 * one:.0f} us ({times_s[BASE] / one:.2f}x)" for name, one in times_s.items())
            print(f"{outputs} x {columns}, {rows} rows: " + ", ".join(cells), flush=True)


if __name__ == "__main__":
    main()
