"""What the machine allows: memory bandwidth and matrix speed, measured now, and the times that follow for a model."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

BANDWIDTH_BYTES = 512 * 2**20
TIMES = 7


@dataclass(frozen=True)
class Machine:
    """Measured with torch on all its threads; the best of a few tries."""

    bytes_per_s: float
    flops_per_s: float


@dataclass(frozen=True)
class Costs:
    """What a model asks of a machine.

    Attributes:
        weight_bytes: read once a step, the embedding left out where it is not also the head.
        parameters: multiplied by each token.
        head_parameters: of them, the head's, which a prompt multiplies once.
        kv_bytes_per_token: over all layers, read by each step for each token in the context.
    """

    weight_bytes: float
    parameters: float
    head_parameters: float
    kv_bytes_per_token: float


def measure() -> Machine:
    """Bandwidth of summing a tensor that no cache holds; speed of a bfloat16 product of a prefill's shape."""
    large = torch.ones(BANDWIDTH_BYTES // 4, dtype=torch.float32)
    bandwidth = BANDWIDTH_BYTES / _best_s(large.sum)
    left, right = torch.randn(1024, 1024, dtype=torch.bfloat16), torch.randn(1024, 3072, dtype=torch.bfloat16)
    return Machine(bandwidth, 2 * 1024 * 1024 * 3072 / _best_s(lambda: left @ right))


def prefill_s(machine: Machine, costs: Costs, tokens: int, prompts: int = 1) -> float:
    """The least time for prompts of so many tokens together."""
    flops = 2 * (tokens * (costs.parameters - costs.head_parameters) + prompts * costs.head_parameters)
    return max(flops / machine.flops_per_s, costs.weight_bytes / machine.bytes_per_s)


def step_s(machine: Machine, costs: Costs, requests: int, context: float) -> float:
    """The least time for one token of each request: weights once, keys and values of each."""
    moved = costs.weight_bytes + requests * context * costs.kv_bytes_per_token
    return max(moved / machine.bytes_per_s, 2 * requests * costs.parameters / machine.flops_per_s)


def _best_s(work: Callable[[], object]) -> float:
    work()
    best = float("inf")
    for _ in range(TIMES):
        began_s = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began_s)
    return best
