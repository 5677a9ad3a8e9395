"""The memory budget: weights, KV pool, activations, workspace. Knows bytes and shapes; asks no device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from anychip.graph.ir import ModelGraph
from anychip.graph.program import weight_uses
from anychip.graph.shapes import width
from anychip.plan.plan import MemoryPlan
from anychip_sdk.device import DeviceInfo
from anychip_sdk.errors import MemoryInsufficient
from anychip_sdk.ops import CATALOGUE
from anychip_sdk.program import Constant, Program
from anychip_sdk.state import bytes_per_slot, bytes_per_token

GIB = 2**30
SAMPLED_ROWS = 16  #: rows that are sampled at once, so that sorting a large vocabulary stays small
MAX_RUNNING = 256  #: the most requests that `auto` lets run
SLOTTED_RUNNING = 32  #: sequences at once of a model with states in slots, where nobody says how many
POOL_TOKENS_MIN = 64  #: a smaller pool serves nobody


@dataclass(frozen=True)
class MemoryNeeds:
    """What the model takes besides the pool, in bytes."""

    weights: int
    activations: int
    workspace: int
    kv_bytes_per_token: int
    bytes_per_slot: int = 0

    def slots(self, running: int | None, most_bytes: int) -> int:
        """Of sequences' states: one for each running sequence, and as many for snapshots of prefixes.

        Args:
            running: sequences at once; None: as many as fit, up to SLOTTED_RUNNING.
            most_bytes: that slots may take then; two are made anyway.
        """
        if not self.bytes_per_slot:
            return 0
        if running is not None:
            return 2 * running
        return 2 * max(1, min(SLOTTED_RUNNING, most_bytes // 2 // self.bytes_per_slot))


def weight_bytes(model: ModelGraph, dtype: torch.dtype) -> int:
    """Every parameter once as it is, if anybody reads it so, and once per op whose kernel prepares its own layout."""
    return sum(use.spec.elements * use.held_dtype(dtype).itemsize for use in weight_uses(model))


def needs(
    model: ModelGraph,
    program: Program,
    vocab_size: int,
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
    chunk: int,
    running: int,
) -> MemoryNeeds:
    """The most that one step of `chunk` prompt tokens and `running` decodes holds beside weights and pool."""
    logits = running * vocab_size * 4
    # sorting in float64 with indices, cumulated and masked copies: about six values of 8 bytes per logit
    sampling = min(running, SAMPLED_ROWS) * vocab_size * 48
    return MemoryNeeds(
        weight_bytes(model, dtype),
        (chunk + running) * activation_bytes(model, program, dtype),
        logits + sampling,
        bytes_per_token(model.groups, kv_dtype),
        bytes_per_slot(model.groups, kv_dtype),
    )


def activation_bytes(model: ModelGraph, program: Program, dtype: torch.dtype) -> int:
    """The most bytes per token that live at once: values, and what a kernel makes of its matrices within."""
    rows = {spec.name: spec.shape[0] for spec in model.weights.values() if len(spec.shape) == 2}
    dying, live, most = program.last_reads(), dict[str, int](), 0
    for number, call in enumerate(program.calls):
        sizes = {name: width(program.shapes[name]) * program.dtypes[name].itemsize for name in call.makes}
        live.update(sizes if call.rows == "tokens" else {})
        keys = [one.key.partition("@")[0] for one in call.args if isinstance(one, Constant)]
        multiplies = call.rows == "tokens" and not call.is_view and CATALOGUE[call.op].error.depth is not None
        inner = sum(rows.get(key, 0) for key in keys) * dtype.itemsize if multiplies else 0
        most = max(most, sum(live.values()) + inner)
        for name in dying.get(number, ()):
            live.pop(name, None)
    return most


def budget(
    needed: MemoryNeeds,
    device: DeviceInfo,
    *,
    fraction: float,
    page_size: int,
    context: int,
    kv_tokens_max: int | None,
    running: int | None = None,
) -> MemoryPlan:
    """Share out the device's memory.

    Args:
        running: sequences at once, where the recipe says so; None: as many as the pool allows.

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
    tokens_min = -(-min(POOL_TOKENS_MIN, context) // page_size) * page_size
    slots = needed.slots(running, min(room // 2, room - tokens_min * needed.kv_bytes_per_token))
    room -= slots * needed.bytes_per_slot
    useful = MAX_RUNNING * context
    tokens = max(0, room) // needed.kv_bytes_per_token if needed.kv_bytes_per_token else useful
    if tokens > useful:
        tokens, reason = useful, f"{MAX_RUNNING} requests of the whole context; more would never be used"
    if kv_tokens_max is not None and kv_tokens_max < tokens:
        tokens, reason = kv_tokens_max, "memory.kv_tokens"
    pages = tokens // page_size
    if pages * page_size < tokens_min:
        raise _too_small(needed, slots, capacity, fraction, tokens, page_size, tokens_min, kv_tokens_max)
    pool = pages * page_size * needed.kv_bytes_per_token + slots * needed.bytes_per_slot
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
        slots,
        needed.bytes_per_slot,
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
    slots = plan.slots * plan.bytes_per_slot
    left = device.memory_bytes_free - (plan.total - plan.kv_pool) - slots
    tokens = left // max(1, plan.kv_bytes_per_token) // page_size * page_size
    if tokens < tokens_min:
        raise MemoryInsufficient(message, hint="stop what else uses the device, or choose a smaller model")
    choices = f"memory.kv_tokens to {tokens}"
    fraction = _thousandths(plan.weights + slots + left, plan.capacity, up=False)
    if int(plan.capacity * fraction) - plan.weights - slots >= tokens_min * plan.kv_bytes_per_token:
        choices = f"memory.static_fraction to {fraction:g} or {choices}"
    raise MemoryInsufficient(message, hint=f"stop what else uses it, or set {choices}")


def _too_small(
    needed: MemoryNeeds,
    slots: int,
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
    kept = slots * needed.bytes_per_slot
    least = needed.weights + kept + tokens_min * needed.kv_bytes_per_token
    other = needed.activations + needed.workspace
    message = (
        f"not enough memory: static_fraction {fraction:g} of {gib(capacity)} is {gib(int(capacity * fraction))}; "
        f"the weights take {gib(needed.weights)}, {f'{slots} slots of states {gib(kept)}, ' if slots else ''}"
        f"activations and workspace {gib(other)}, "
        f"leaving {tokens} tokens for the KV pool; {tokens_min} are needed"
    )
    if least + other <= capacity:
        hint = f"set memory.static_fraction to at least {_thousandths(least, capacity, up=True):g}"
    elif least < capacity:
        hint = (
            f"lower scheduler.chunked_prefill_size and scheduler.max_running_requests: activations and workspace may "
            f"take {gib(capacity - least)}"
        )
    elif kept and least - kept + 2 * needed.bytes_per_slot < capacity:
        hint = f"lower scheduler.max_running_requests: each takes two slots, {gib(2 * needed.bytes_per_slot)}"
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
        "slots": plan.slots,
        "bytes_per_slot": plan.bytes_per_slot,
    }


__all__ = [
    "MAX_RUNNING",
    "SAMPLED_ROWS",
    "MemoryNeeds",
    "activation_bytes",
    "as_mapping",
    "budget",
    "gib",
    "needs",
    "weight_bytes",
]
