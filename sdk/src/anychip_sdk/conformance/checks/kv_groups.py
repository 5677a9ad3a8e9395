"""Pools of several groups of states, and of states in slots. Knows groups, pages and slots; knows no op."""

from __future__ import annotations

import torch

from anychip_sdk.conformance.context import Context
from anychip_sdk.conformance.requirements import Violation, expect, requirement
from anychip_sdk.conformance.trial.oracle import same_bits
from anychip_sdk.conformance.trial.placing import keys_and_values
from anychip_sdk.conformance.trial.pools import caches, kv_dtype, pool_of, slotted
from anychip_sdk.kv import KVPool
from anychip_sdk.state import StateGroup, StateSpec, StateTensor

PAGES, PAGE_SIZE, SLOTS = 9, 16, 5
#: full and windowed attention, and one vector a token
PAGED = (
    keys_and_values(2, 64, layers=2),
    keys_and_values(2, 64, layers=3, window=8),
    StateGroup(StateSpec("latent", "paged", (StateTensor("latent", (72,)),)), 2),
)
#: a recurrent state in float32 and the last inputs of a convolution in the pool's dtype
SLOTTED = StateGroup(
    StateSpec("recurrent", "slot", (StateTensor("state", (2, 16, 8), torch.float32), StateTensor("inputs", (3, 24)))), 2
)


@requirement(
    "AC-KV-015",
    level="MUST",
    text="A pool of several groups MUST give each its own tensors, count all of them in its bytes, and copy a page in "
    "every one: a page number means the same tokens in each group.",
)
def groups_are_kept_apart_and_copied_together(context: Context) -> None:
    with pool_of(context, PAGES, PAGE_SIZE, groups=PAGED) as pool:
        _expect_shapes(pool)
        least = sum(group.nbytes(kv_dtype(context)) for group in PAGED)
        stated = pool.layout.bytes_per_token
        expect(stated >= least, f"{stated} bytes per token are stated for three groups, {least} are needed")
        _fill_apart(context, pool)
        src, dst = pool.alloc(2), pool.alloc(2)
        before = _contents(context, pool)
        pool.copy_pages(src, dst)
        _expect_copied(before, _contents(context, pool), dict(zip(dst, src, strict=True)), "page")


@requirement(
    "AC-KV-016",
    level="MUST",
    text="States in slots MUST be zeros at first; copy_slots and clear_slots MUST change the named slots of every slot "
    "group and layer, and nothing else.",
)
def slots_are_copied_and_cleared_exactly(context: Context) -> None:
    with pool_of(context, PAGES, PAGE_SIZE, groups=(PAGED[0], SLOTTED), slots=SLOTS) as pool:
        expect(pool.layout.slots == SLOTS, f"the pool has {pool.layout.slots} slots, {SLOTS} were asked for")
        _expect_shapes(pool)
        for name, tensor in slotted(pool):
            expect(not bool(tensor.cpu().any()), f"{name} is not zero at first")
        _fill_apart(context, pool)
        before = _contents(context, pool)
        pool.copy_slots([0, 3], [4, 1])
        copied = _contents(context, pool)
        _expect_copied(before, copied, {4: 0, 1: 3}, "slot")
        pool.clear_slots([2, 4])
        _expect_cleared(copied, _contents(context, pool), {2, 4})


def _expect_shapes(pool: KVPool) -> None:
    for index, group in enumerate(pool.groups):
        room = (PAGES, PAGE_SIZE) if group.spec.kind == "paged" else (pool.layout.slots,)
        for layer in range(group.layers):
            for wanted, tensor in zip(group.spec.tensors, pool.tensors(index, layer), strict=True):
                what = f"{wanted.name} of group {index}, layer {layer}"
                shape, dtype = (*room, *wanted.shape), wanted.dtype or pool.layout.dtype
                expect(tuple(tensor.shape) == shape, f"{what}: the shape is {list(tensor.shape)}, expected {shape}")
                expect(tensor.dtype == dtype, f"{what}: the dtype is {tensor.dtype}, expected {dtype}")


def _fill_apart(context: Context, pool: KVPool) -> None:
    """Random numbers everywhere, and the proof that no tensor shares memory with another."""
    written = {}
    for name, tensor in (*caches(pool), *slotted(pool)):
        values = torch.randn(tensor.shape, generator=context.generator(name), dtype=torch.float64).to(tensor.dtype)
        tensor.copy_(values)
        written[name] = values
    for name, found in _contents(context, pool).items():
        expect(same_bits(found, written[name]), f"{name} was overwritten through another state's tensor")


def _contents(context: Context, pool: KVPool) -> dict[str, torch.Tensor]:
    context.device.synchronize()
    return {name: tensor.cpu().clone() for name, tensor in (*caches(pool), *slotted(pool))}


def _expect_copied(
    before: dict[str, torch.Tensor], after: dict[str, torch.Tensor], origin: dict[int, int], kind: str
) -> None:
    for name, old in before.items():
        moves = (old.dim() > 1 and old.shape[:2] == (PAGES, PAGE_SIZE)) == (kind == "page")
        for at in range(len(old)):
            source = origin.get(at, at) if moves else at
            if not same_bits(after[name][at], old[source]):
                what = f"is no copy of {kind} {source}" if source != at else "was changed"
                raise Violation(f"{name}: number {at} {what}", got=after[name][at], expected=old[source])


def _expect_cleared(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor], cleared: set[int]) -> None:
    for name, old in before.items():
        is_slot = len(old) == SLOTS
        for at in range(len(old)):
            want = torch.zeros_like(old[at]) if is_slot and at in cleared else old[at]
            if not same_bits(after[name][at], want):
                raise Violation(f"{name}: after clear_slots, number {at} is wrong", got=after[name][at], expected=want)


__all__: list[str] = []
