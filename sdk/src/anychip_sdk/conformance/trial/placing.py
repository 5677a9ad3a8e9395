"""A trial's arguments on the device: between guard bytes, caches in the backend's pool, weights as it prepares them.

Knows layouts; runs no kernel.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from anychip_sdk.conformance.context import Context
from anychip_sdk.conformance.requirements import Violation
from anychip_sdk.conformance.trial.trials import Trial
from anychip_sdk.kv import KVPool, KVSpec
from anychip_sdk.ops.base import Arg, AttentionBatch

GUARD_BYTES = 256
GUARD = 0xA5
CACHES = ("k_cache", "v_cache")
AXES = ("page", "slot", "head", "dim")


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
def placed(context: Context, one: Trial, *, shift: int = 0) -> Iterator[Placed]:
    """The arguments on the device, `shift` elements off alignment; their pool is closed afterwards."""
    device = context.device.torch_device
    where = Placed([])
    try:
        if any(arg.name in CACHES for arg in one.op.args):
            where.pool = _pool_for(context, one)
        for arg, value in zip(one.op.args, one.args, strict=True):
            where.values.append(_place(context, one, where, arg, value, device, shift))
        yield where
    finally:
        if where.pool is not None:
            context.device.synchronize()
            where.pool.close()


def _place(context: Context, one: Trial, where: Placed, arg: Arg, value: Any, device: torch.device, shift: int) -> Any:
    if isinstance(value, AttentionBatch):
        return batch_to(value, device)
    if not isinstance(value, torch.Tensor):
        return value
    if arg.name in CACHES and where.pool is not None:
        cache = where.pool.layer(0)[CACHES.index(arg.name)]
        write_cache(cache, where.pool.layout.axes, value)
        return cache
    where.guards[arg.name] = guard = guarded(value, device, shift)
    if not (arg.weight and one.kernel.prepares_weight):
        return guard.tensor
    prepared = context.backend.prepare_weight(f"check.{arg.name}", guard.tensor, one.op.name, context.device)
    where.weights_bytes[arg.name] = prepared.nbytes
    return prepared.value


def guarded(value: torch.Tensor, device: torch.device, shift: int = 0) -> Guarded:
    """A copy of the tensor on the device, with its strides and all that lies between its elements."""
    storage = value.untyped_storage()
    start = GUARD_BYTES + shift * value.itemsize
    stop = start + storage.nbytes()
    host = torch.full((-(-(stop + GUARD_BYTES) // 16) * 16,), GUARD, dtype=torch.uint8)
    host[start:stop] = torch.empty(0, dtype=torch.uint8).set_(storage)
    whole = host.to(device, copy=True)
    offset = start // value.itemsize + value.storage_offset()
    tensor = whole.view(value.dtype).as_strided(value.shape, value.stride(), offset)
    return Guarded(tensor, whole, host, start, stop)


def batch_to(batch: AttentionBatch, device: torch.device) -> AttentionBatch:
    """A copy of the batch on the device, nothing derived from it yet."""
    tensors = {
        name: getattr(batch, name).to(device, copy=True)
        for name in ("query_start", "context_lens", "page_table", "slots")
    }
    return dataclasses.replace(batch, **tensors, derived={})


def _pool_for(context: Context, one: Trial) -> KVPool:
    """A pool of one layer that holds the trial's caches."""
    pages, page_size, kv_heads, head_dim = one.args[[arg.name for arg in one.op.args].index("k_cache")].shape
    return make_pool(context, pages, page_size=page_size, kv_heads=kv_heads, head_dim=head_dim, dtype=one.dtype)


def make_pool(context: Context, pages: int, **spec: Any) -> KVPool:
    """The backend's pool with at least that many pages; `spec` as in KVSpec, layers 1 unless given."""
    full = {"layers": 1, **spec}
    token_bytes = 2 * full["layers"] * full["kv_heads"] * full["head_dim"] * full["dtype"].itemsize
    budget = 2 * pages * full["page_size"] * token_bytes + (1 << 16)
    pool = context.backend.create_kv_pool(KVSpec(budget_bytes=budget, pages_max=pages, **full), context.device)
    if pool.layout.pages < pages:
        message = f"the pool has {pool.layout.pages} pages for a budget that holds {2 * pages}"
        raise Violation(message, layout=str(pool.layout))
    return pool


def token_major(cache: torch.Tensor, axes: Sequence[str]) -> torch.Tensor:
    """A cache in the pool's layout as [page, slot, head, dim]: a view, or a copy where an axis is split in two."""
    order = [i for name in AXES for i, axis in enumerate(axes) if axis == name]
    sizes = [math.prod(size for axis, size in zip(axes, cache.shape, strict=True) if axis == name) for name in AXES]
    return cache.permute(order).reshape(sizes)


def write_cache(cache: torch.Tensor, axes: Sequence[str], value: torch.Tensor) -> None:
    """Put [page, slot, head, dim] into the first pages of a cache in the pool's layout."""
    order = [i for name in AXES for i, axis in enumerate(axes) if axis == name]
    target = cache.permute(order)
    target = target.narrow(0, 0, value.shape[0])
    target.copy_(value.reshape(target.shape))


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
    "AXES",
    "CACHES",
    "Guarded",
    "Placed",
    "batch_to",
    "check_places",
    "guarded",
    "make_pool",
    "placed",
    "token_major",
    "write_cache",
]
