"""What checks of KV pools share: a pool for a while, an independent reader, a trap for allocations. Knows no check."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode  # the documented way to see every operation
from torch.utils._pytree import tree_leaves

from anychip_sdk.conformance.context import Context
from anychip_sdk.conformance.requirements import Violation
from anychip_sdk.conformance.trial.placing import keys_and_values, make_pool
from anychip_sdk.device import Device
from anychip_sdk.errors import AnychipError
from anychip_sdk.kv import KVPool

LAYERS, KV_HEADS, HEAD_DIM = 3, 2, 64


@contextmanager
def pool_of(context: Context, pages: int, page_size: int, **spec: Any) -> Iterator[KVPool]:
    """A pool of that many pages, closed afterwards; keys and values of LAYERS layers unless `groups` says otherwise."""
    full = {"groups": (keys_and_values(KV_HEADS, HEAD_DIM, LAYERS),), "dtype": kv_dtype(context), **spec}
    try:
        pool = make_pool(context, pages, page_size=page_size, **full)
    except AnychipError as error:
        message = f"no pool of {pages} pages of {page_size} tokens for a budget that holds twice as many: {error}"
        raise Violation(message) from error
    try:
        yield pool
    finally:
        context.device.synchronize()
        pool.close()


def kv_dtype(context: Context) -> torch.dtype:
    """The first claimed dtype that the backend writes KV in itself, else the first that is a float."""
    claimed = [name for name in context.claims.ops.get("kv_write", ()) if getattr(torch, name).is_floating_point]
    floats = [name for name in context.claims.dtypes if getattr(torch, name).is_floating_point]
    found: torch.dtype = getattr(torch, [*claimed, *floats, "float32"][0])
    return found


def caches(pool: KVPool, layers: int | None = None) -> list[tuple[str, torch.Tensor]]:
    """Every paged state tensor of the pool with a name for people, of so many layers of each group."""
    return _named(pool, "paged", layers)


def slotted(pool: KVPool) -> list[tuple[str, torch.Tensor]]:
    """The same of the slot groups."""
    return _named(pool, "slot", None)


def _named(pool: KVPool, kind: str, layers: int | None) -> list[tuple[str, torch.Tensor]]:
    found = []
    for index, group in enumerate(pool.groups):
        if group.spec.kind != kind:
            continue
        for layer in range(group.layers if layers is None else min(layers, group.layers)):
            named = zip(group.spec.tensors, pool.tensors(index, layer), strict=True)
            found += [(f"{one.name} of group {index}, layer {layer}", tensor) for one, tensor in named]
    return found


@dataclass
class Trap:
    """What was allocated while it was set."""

    given: dict[int, int] = field(default_factory=dict)  #: address -> bytes of the buffers that are still out
    calls: list[str] = field(default_factory=list)


@contextmanager
def trapped(device: Device) -> Iterator[Trap]:
    """Note every call of the device's alloc and free."""
    trap = Trap()
    alloc, free = device.alloc, device.free

    def noted_alloc(nbytes: int, alignment: int = 64) -> torch.Tensor:
        buffer = alloc(nbytes, alignment)
        trap.calls.append(f"alloc({nbytes})")
        trap.given[buffer.data_ptr()] = nbytes
        return buffer

    def noted_free(buffer: torch.Tensor) -> None:
        trap.calls.append("free")
        trap.given.pop(buffer.data_ptr(), None)
        free(buffer)

    with _replaced(device, "alloc", noted_alloc), _replaced(device, "free", noted_free):
        yield trap


@contextmanager
def _replaced(owner: object, name: str, value: Callable[..., Any]) -> Iterator[None]:
    """An attribute of one object for a while."""
    had = name in vars(owner)
    before = vars(owner).get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if had:
            setattr(owner, name, before)
        else:
            delattr(owner, name)


class NewTensors(TorchDispatchMode):
    """Notes every torch operation that makes new memory of at least so many bytes on a device.

    Args:
        device: of the memory.
        least_bytes: what is smaller is book-keeping.
    """

    def __init__(self, device: torch.device, least_bytes: int) -> None:
        super().__init__()
        self.made: list[str] = []
        self._device = device
        self._least_bytes = least_bytes

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        answer = func(*args, **(kwargs or {}))
        known = {_storage(value) for value in tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)}
        for value in tree_leaves(answer):
            if isinstance(value, torch.Tensor) and value.device.type == self._device.type:
                nbytes = value.untyped_storage().nbytes()
                if nbytes >= self._least_bytes and _storage(value) not in known:
                    self.made.append(f"{func} of {nbytes} bytes")
        return answer


def _storage(value: torch.Tensor) -> int:
    return value.untyped_storage().data_ptr()


__all__ = [
    "HEAD_DIM",
    "KV_HEADS",
    "LAYERS",
    "NewTensors",
    "Trap",
    "caches",
    "kv_dtype",
    "pool_of",
    "slotted",
    "trapped",
]
