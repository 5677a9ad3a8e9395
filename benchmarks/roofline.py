"""What the machine allows: memory bandwidth and matrix speed, measured now, and the times that follow for a model."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy
import torch

from anychip_cpu import native
from anychip_cpu.kernels import packed
from anychip_cpu.kernels.quantized import Products
from anychip_cpu.kernels.quantized import prepare as prepare_integers
from anychip_cpu.memory import mapped

BANDWIDTH_BYTES = 2**30
ROWS, OUTPUTS, COLUMNS = 1024, 4096, 4096  #: of a product that no cache's size slows down
TIMES = 5


@dataclass(frozen=True)
class Machine:
    """Measured on all of torch's threads: the fastest of several ways, each the best of a few tries.

    Attributes:
        bytes_per_s: of reading huge pages in order.
        flops_per_s: of products in bfloat16.
        int8_ops_per_s: of products of 8-bit integers.
    """

    bytes_per_s: float
    flops_per_s: float
    int8_ops_per_s: float


@dataclass(frozen=True)
class Costs:
    """What a model asks of a machine.

    Attributes:
        weight_bytes: read once a step, the embedding left out where it is not also the head.
        parameters: multiplied by each token.
        head_parameters: of them, the head's, which a prompt multiplies once.
        kv_bytes_per_token: over all layers, read by each step for each token in the context.
        is_integer: products are of 8-bit integers.
    """

    weight_bytes: float
    parameters: float
    head_parameters: float
    kv_bytes_per_token: float
    is_integer: bool = False


def measure() -> Machine:
    """It takes a few seconds."""
    operations = 2 * ROWS * OUTPUTS * COLUMNS
    return Machine(
        read_bytes_per_s(),
        operations / _best_s(_bfloat16_products()),
        operations / _best_s(_int8_products()),
    )


def read_bytes_per_s() -> float:
    """Measured now; it takes half a second, and the first time one more."""
    return BANDWIDTH_BYTES / _best_s(_reads())


def prefill_s(machine: Machine, costs: Costs, tokens: int, prompts: int = 1) -> float:
    """The least time for prompts of so many tokens together."""
    operations = 2 * (tokens * (costs.parameters - costs.head_parameters) + prompts * costs.head_parameters)
    return max(operations / _speed(machine, costs), costs.weight_bytes / machine.bytes_per_s)


def step_s(machine: Machine, costs: Costs, requests: int, context: float, shared: float = 0) -> float:
    """The least time for one token of each request: weights once, keys and values of each, shared ones once for all."""
    tokens = shared + requests * (context - shared)
    moved = costs.weight_bytes + tokens * costs.kv_bytes_per_token
    return max(moved / machine.bytes_per_s, 2 * requests * costs.parameters / _speed(machine, costs))


def _speed(machine: Machine, costs: Costs) -> float:
    return machine.int8_ops_per_s if costs.is_integer else machine.flops_per_s


@lru_cache(maxsize=1)
def _reads() -> list[Callable[[], object]]:
    """Reductions that load wide; which of them keeps up with the memory depends on the processor."""
    raw = mapped(BANDWIDTH_BYTES)
    raw.view(torch.int64).copy_(torch.arange(BANDWIDTH_BYTES // 8))
    threads = torch.get_num_threads()
    parts = numpy.array_split(raw.numpy(), threads)
    pool = ThreadPoolExecutor(threads)
    reductions: dict[type, Callable[..., object]] = {
        numpy.int32: numpy.max,
        numpy.int64: numpy.bitwise_or.reduce,
        numpy.float32: lambda part: numpy.dot(part, part),
    }

    def read(dtype: type, reduce: Callable[..., object]) -> None:
        list(pool.map(lambda part: reduce(part.view(dtype)), parts))

    return [partial(read, dtype, reduce) for dtype, reduce in reductions.items()]


def _bfloat16_products() -> list[Callable[[], object]]:
    x, weight = torch.randn(ROWS, COLUMNS).bfloat16(), torch.randn(OUTPUTS, COLUMNS).bfloat16()
    ways: list[Callable[[], object]] = [partial(torch.nn.functional.linear, x, weight)]
    if torch.bfloat16 in packed.usable_dtypes():
        ways.append(partial(packed.multiply, x, packed.pack(weight)))
    return ways


def _int8_products() -> list[Callable[[], object]]:
    sizes = ((ROWS, COLUMNS), (OUTPUTS, COLUMNS))
    x, weight = (torch.randint(-127, 128, size, dtype=torch.int8) for size in sizes)
    ways: list[Callable[[], object]] = [lambda: torch._int_mm(x, weight.T)]
    library = native.library()
    if not isinstance(library, native.Absent):
        own = [prepare_integers(one).value for one in (weight, torch.ones(OUTPUTS, 1))]
        ways.append(partial(Products(library).linear_int8, x.bfloat16(), *own))
    if hasattr(torch.ops.onednn, "qlinear_pointwise"):
        prepacked = torch.ops.onednn.qlinear_prepack(weight, [ROWS, COLUMNS])
        scale, zero = torch.ones(OUTPUTS), torch.zeros(OUTPUTS, dtype=torch.int64)
        unsigned, post = x.view(torch.uint8), (None, 1.0, 0, torch.bfloat16, "none", [], "")
        ways.append(lambda: torch.ops.onednn.qlinear_pointwise(unsigned, 1.0, 0, prepacked, scale, zero, *post))
    return ways


def _best_s(ways: Sequence[Callable[[], object]]) -> float:
    best = float("inf")
    for work in ways:
        work()
        for _ in range(TIMES):
            began_s = time.perf_counter()
            work()
            best = min(best, time.perf_counter() - began_s)
    return best
