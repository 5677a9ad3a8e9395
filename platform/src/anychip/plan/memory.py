"""The memory budget: weights, KV pool, activations, workspace. Knows bytes and shapes; asks no device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from anychip.graph.ir import ModelGraph, WeightSpec, resolution
from anychip.models.config import ModelConfig
from anychip.plan.plan import MemoryPlan
from anychip_sdk.device import DeviceInfo
from anychip_sdk.errors import MemoryInsufficient
from anychip_sdk.ops import Op

GIB = 2**30
SAMPLED_ROWS = 16  #: rows that are sampled at once, so that sorting a large vocabulary stays small
MAX_RUNNING = 256  #: the most requests that `auto` lets run
POOL_TOKENS_MIN = 64  #: a smaller pool serves nobody


@dataclass(frozen=True)
class MemoryNeeds:
    """What the model takes besides the pool, in bytes."""

    weights: int
    activations: int
    workspace: int
    kv_bytes_per_token: int


def weight_bytes(model: ModelGraph, dtype: torch.dtype) -> int:
    """Every parameter once as it is, if anybody reads it so, and once per op whose kernel prepares its own layout."""
    total = 0
    for node in model.graph.nodes:
        if node.op != "get_attr" or node.target not in model.weights:
            continue
        spec = model.weights[str(node.target)]
        layouts = dict(_layout(user, spec, dtype) for user in node.users)
        total += sum(layouts.values()) * spec.elements
    return total


def _layout(user: torch.fx.Node, spec: WeightSpec, dtype: torch.dtype) -> tuple[str, int]:
    """Which copy of a weight a user reads, and the bytes of an element of it."""
    if isinstance(user.target, Op) and resolution(user).kernel.prepares_weight:
        return user.target.name, spec.itemsize(resolution(user).compute_dtype or dtype)
    return "", spec.itemsize(dtype)


def needs(
    config: ModelConfig, model: ModelGraph, dtype: torch.dtype, kv_dtype: torch.dtype, chunk: int, running: int
) -> MemoryNeeds:
    """The most that one step of `chunk` prompt tokens and `running` decodes holds beside weights and pool."""
    tokens = chunk + running
    attention = 2 * config.q_size + 2 * config.kv_size
    mlp = 3 * config.intermediate_size
    per_token = (4 * config.hidden_size + max(attention, mlp)) * dtype.itemsize
    logits = running * config.vocab_size * 4
    # sorting in float64 with indices, cumulated and masked copies: about six values of 8 bytes per logit
    sampling = min(running, SAMPLED_ROWS) * config.vocab_size * 48
    kv = 2 * config.num_layers * config.kv_size * kv_dtype.itemsize
    return MemoryNeeds(weight_bytes(model, dtype), tokens * per_token, logits + sampling, kv)


def budget(
    needed: MemoryNeeds, device: DeviceInfo, *, fraction: float, page_size: int, context: int, kv_tokens_max: int | None
) -> MemoryPlan:
    """Share out the device's memory.

    Raises:
        MemoryInsufficient: weights and one short request do not fit; names what would.
    """
    capacity = device.memory_bytes_total
    static = int(capacity * fraction)
    reason = f"static_fraction {fraction:g} of {gib(capacity)}, less the weights"
    room = static - needed.weights
    spare = capacity - needed.weights - needed.activations - needed.workspace
    if spare < room:
        room, reason = spare, "what activations and workspace leave of the device"
    tokens = max(0, room) // needed.kv_bytes_per_token
    useful = MAX_RUNNING * context
    if tokens > useful:
        tokens, reason = useful, f"{MAX_RUNNING} requests of the whole context; more would never be used"
    if kv_tokens_max is not None and kv_tokens_max < tokens:
        tokens, reason = kv_tokens_max, "memory.kv_tokens"
    pages = tokens // page_size
    tokens_min = -(-min(POOL_TOKENS_MIN, context) // page_size) * page_size
    if pages * page_size < tokens_min:
        raise _too_small(needed, capacity, fraction, tokens, page_size, tokens_min, kv_tokens_max)
    pool = pages * page_size * needed.kv_bytes_per_token
    plan = MemoryPlan(
        capacity,
        static,
        needed.weights,
        pool,
        needed.activations,
        needed.workspace,
        needed.kv_bytes_per_token,
        pages,
        reason,
    )
    _check_free(plan, device, page_size, tokens_min)
    return plan


def _check_free(plan: MemoryPlan, device: DeviceInfo, page_size: int, tokens_min: int) -> None:
    if plan.total <= device.memory_bytes_free:
        return
    message = (
        f"device {device.name}: {gib(plan.total)} are needed, {gib(device.memory_bytes_free)} of "
        f"{gib(plan.capacity)} are free"
    )
    left = device.memory_bytes_free - (plan.total - plan.kv_pool)
    tokens = left // plan.kv_bytes_per_token // page_size * page_size
    if tokens < tokens_min:
        raise MemoryInsufficient(message, hint="stop what else uses the device, or choose a smaller model")
    choices = f"memory.kv_tokens to {tokens}"
    fraction = _thousandths(plan.weights + left, plan.capacity, up=False)
    if int(plan.capacity * fraction) - plan.weights >= tokens_min * plan.kv_bytes_per_token:
        choices = f"memory.static_fraction to {fraction:g} or {choices}"
    raise MemoryInsufficient(message, hint=f"stop what else uses it, or set {choices}")


def _too_small(
    needed: MemoryNeeds,
    capacity: int,
    fraction: float,
    tokens: int,
    page_size: int,
    tokens_min: int,
    kv_tokens_max: int | None,
) -> MemoryInsufficient:
    if kv_tokens_max is not None and kv_tokens_max < tokens_min:
        message = f"memory.kv_tokens is {kv_tokens_max}; at least {tokens_min} are needed (page size {page_size})"
        return MemoryInsufficient(message, hint=f"set memory.kv_tokens to {tokens_min} or more, or leave it out")
    least = needed.weights + tokens_min * needed.kv_bytes_per_token
    other = needed.activations + needed.workspace
    message = (
        f"not enough memory: static_fraction {fraction:g} of {gib(capacity)} is {gib(int(capacity * fraction))}; "
        f"the weights take {gib(needed.weights)}, activations and workspace {gib(other)}, "
        f"leaving {tokens} tokens for the KV pool; {tokens_min} are needed"
    )
    if least + other <= capacity:
        hint = f"set memory.static_fraction to at least {_thousandths(least, capacity, up=True):g}"
    elif least < capacity:
        hint = (
            f"lower scheduler.chunked_prefill_size and scheduler.max_running_requests: activations and workspace may "
            f"take {gib(capacity - least)}"
        )
    else:
        hint = f"this device is too small for the model: {gib(least)} are needed at least; choose a smaller model"
    return MemoryInsufficient(message, hint=hint)


def _thousandths(part: int, whole: int, *, up: bool) -> float:
    """part / whole, rounded so that int(whole * result) is on the right side of part."""
    count = -(-part * 1000 // whole) if up else part * 1000 // whole
    # a product that is exact in theory may come out a byte short
    if up and int(whole * (count / 1000)) < part:
        count += 1
    return count / 1000


def gib(count: int) -> str:
    """Bytes for people: GiB, or MiB below one."""
    return f"{count / GIB:.2f} GiB" if abs(count) >= GIB else f"{count / 2**20:.0f} MiB"


def as_mapping(plan: MemoryPlan) -> Mapping[str, int | str]:
    """The budget for JSON; bytes, except for counts named so."""
    return {
        "capacity_bytes": plan.capacity,
        "static_budget_bytes": plan.static_budget,
        "weights_bytes": plan.weights,
        "kv_pool_bytes": plan.kv_pool,
        "activations_bytes": plan.activations,
        "workspace_bytes": plan.workspace,
        "headroom_bytes": plan.headroom,
        "kv_bytes_per_token": plan.kv_bytes_per_token,
        "kv_pages": plan.kv_pages,
        "kv_reason": plan.kv_reason,
    }


__all__ = ["MAX_RUNNING", "SAMPLED_ROWS", "MemoryNeeds", "as_mapping", "budget", "gib", "needs", "weight_bytes"]
