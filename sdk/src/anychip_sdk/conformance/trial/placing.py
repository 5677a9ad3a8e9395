"""A trial's arguments on the device: between guard bytes, caches in the backend's pool, weights as it prepares them.

Knows layouts; runs no kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from anychip_sdk.conformance.context import Context
from anychip_sdk.conformance.requirements import Violation
from anychip_sdk.conformance.trial.trials import Trial
from anychip_sdk.kv import KVPool, PoolSpec
from anychip_sdk.ops.base import Arg
from anychip_sdk.state import StateGroup, StateSpec, StateTensor
from anychip_sdk.step import Step

GUARD_BYTES = 256
GUARD = 0xA5
PERIOD_BYTES = 4096
#: Addresses modulo the period, aligned to 64 bytes: each of the bits between differs in the first two.
PLACES = (0, 4032, 1344, 2688)


@dataclass(frozen=True)
class Guarded:
    """A tensor on the device with guard bytes on both sides."""

    tensor: torch.Tensor
    whole: torch.Tensor  #: all bytes, on the device
    before: torch.Tensor  #: all bytes as they were, on the host
    start: int  #: where the tensor's storage begins
    stop: int


@dataclass
class Placed:
    """A trial's arguments on the device, and what is needed to see whether the kernel wrote where it must not."""

    values: list[Any]
    guards: dict[str, Guarded] = field(default_factory=dict)
    pool: KVPool | None = None
    weights_bytes: dict[str, int] = field(default_factory=dict)


@contextmanager
def placed(context: Context, one: Trial, *, shift: int = 0, place: int | None = None) -> Iterator[Placed]:
    """The arguments on the device; their pool is closed afterwards.

    Args:
        shift: so many elements off alignment.
        place: the addresses' remainder modulo PERIOD_BYTES, before the shift; None: as the device allocates.
    """
    guard_it = partial(guarded, device=context.device.torch_device, shift=shift, place=place)
    where = Placed([])
    try:
        if one.op.states:
            where.pool = _pool_for(context, one)
        for arg, value in zip(one.op.args, one.args, strict=True):
            where.values.append(_place(context, one, where, arg, value, guard_it))
        yield where
    finally:
        if where.pool is not None:
            context.device.synchronize()
            where.pool.close()


def _place(context: Context, one: Trial, where: Placed, arg: Arg, value: Any, guard_it: Callable[..., Guarded]) -> Any:
    if isinstance(value, Step):
        return value.to(context.device.torch_device)
    if not isinstance(value, torch.Tensor):
        return value
    if arg.state and where.pool is not None:
        state = where.pool.tensors(0, 0)[one.op.states.index(arg.name)]
        state[: len(value)].copy_(value)
        return state
    where.guards[arg.name] = guard = guard_it(value)
    if not (arg.weight and one.kernel.prepares_weight):
        return guard.tensor
    prepared = context.backend.prepare_weight(f"check.{arg.name}", guard.tensor, one.op.name, context.device)
    where.weights_bytes[arg.name] = prepared.nbytes
    return prepared.value


def guarded(value: torch.Tensor, device: torch.device, shift: int = 0, place: int | None = None) -> Guarded:
    """A copy of the tensor on the device, with its strides and all that lies between its elements; see `placed`."""
    storage = value.untyped_storage()
    room_bytes = 0 if place is None else PERIOD_BYTES
    size = 2 * GUARD_BYTES + room_bytes + shift * value.itemsize + storage.nbytes()
    whole = torch.empty(-(-size // 16) * 16, dtype=torch.uint8, device=device)
    first = GUARD_BYTES if place is None else GUARD_BYTES + (place - whole.data_ptr() - GUARD_BYTES) % PERIOD_BYTES
    start = first + shift * value.itemsize
    stop = start + storage.nbytes()
    host = torch.full((len(whole),), GUARD, dtype=torch.uint8)
    host[start:stop] = torch.empty(0, dtype=torch.uint8).set_(storage)
    whole.copy_(host)
    offset = start // value.itemsize + value.storage_offset()
    tensor = whole.view(value.dtype).as_strided(value.shape, value.stride(), offset)
    return Guarded(tensor, whole, host, start, stop)


def _pool_for(context: Context, one: Trial) -> KVPool:
    """A pool of one layer that holds the trial's states."""
    given = one.named()
    entries = {name: given[name] for name in one.op.states}
    first = next(iter(entries.values()))
    if one.op.keeps_slots:
        tensors = tuple(StateTensor(name, tuple(value.shape[1:]), value.dtype) for name, value in entries.items())
        group = StateGroup(StateSpec("trial", "slot", tensors), 1)
        return make_pool(context, 1, page_size=1, groups=(group,), dtype=one.dtype, slots=len(first))
    tensors = tuple(StateTensor(name, tuple(value.shape[2:])) for name, value in entries.items())
    group = StateGroup(StateSpec("trial", "paged", tensors), 1)
    return make_pool(context, len(first), page_size=first.shape[1], groups=(group,), dtype=one.dtype)


def keys_and_values(kv_heads: int, head_dim: int, layers: int = 1, window: int | None = None) -> StateGroup:
    """The states of grouped-query attention."""
    shape = (kv_heads, head_dim)
    return StateGroup(StateSpec("kv", "paged", (StateTensor("k", shape), StateTensor("v", shape)), window), layers)


def make_pool(context: Context, pages: int, *, groups: tuple[StateGroup, ...], **spec: Any) -> KVPool:
    """The backend's pool with that many pages, from twice the budget that they take; `spec` as in PoolSpec."""
    asked = PoolSpec(groups, budget_bytes=0, pages_max=pages, **spec)
    slots_bytes = asked.slots * asked.bytes_per_slot
    budget = 2 * pages * asked.page_size * asked.bytes_per_token + slots_bytes + (1 << 16)
    pool = context.backend.create_kv_pool(replace(asked, budget_bytes=budget), context.device)
    if pool.layout.pages < pages:
        message = f"the pool has {pool.layout.pages} pages for a budget that holds {2 * pages}"
        raise Violation(message, layout=str(pool.layout))
    return pool


def check_places(one: Trial, where: Placed) -> None:
    """Guards are whole, arguments that aren't declared as mutated have the bytes that they had."""
    for name, guard in where.guards.items():
        changed = guard.whole.cpu() != guard.before
        if name in one.op.mutated:
            changed[guard.start : guard.stop] = False
        at = changed.nonzero().flatten()
        if at.numel():
            message = f"{one}: {at.numel()} bytes of or around the argument '{name}' were changed"
            raise Violation(message, **one.named(), first_byte=int(at[0]) - guard.start)


__all__ = [
    "PERIOD_BYTES",
    "PLACES",
    "Guarded",
    "Placed",
    "check_places",
    "guarded",
    "keys_and_values",
    "make_pool",
    "placed",
]
