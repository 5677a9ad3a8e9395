"""The memory of one reference chip: counted, aligned, guarded and poisoned. Knows no stream; asks whether work is done.

A buffer lies in a host tensor of its own:  | guard | buffer | slack and guard |. Guards hold GUARD, what was freed
holds POISON, so that a read of either shows (POISON is NaN in every floating dtype) and a write to a guard is found.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field

import torch

from anychip_sdk.conformance.reference.ledger import Ledger
from anychip_sdk.errors import MemoryInsufficient

GRANULARITY = 512
GUARD_BYTES = 64
GUARD = 0xA5
POISON = 0xFF
CACHED_BYTES_MAX = 64 << 20


@dataclass(eq=False)
class Block:
    """One buffer: where it is and who still works with it."""

    whole: torch.Tensor  #: uint8, guards included
    offset: int
    nbytes: int
    pending: int = 0  #: queued work that uses it
    is_freed: bool = False
    start: int = field(init=False)

    def __post_init__(self) -> None:
        self.start = address_of(self.whole) + self.offset

    @property
    def charged(self) -> int:
        return charged(self.nbytes)

    @property
    def view(self) -> torch.Tensor:
        return self.whole[self.offset : self.offset + self.nbytes]


def charged(nbytes: int) -> int:
    """What an allocation costs: whole granules, at least one."""
    return max(1, -(-nbytes // GRANULARITY)) * GRANULARITY


def address_of(tensor: torch.Tensor) -> int:
    """Where a tensor begins; `data_ptr` is 0 for an empty one."""
    return int(tensor.untyped_storage().data_ptr() + tensor.storage_offset() * tensor.element_size())


class ChipMemory:
    """All buffers of one chip, of every opened device on it.

    Args:
        name: of the device, for messages.
        capacity_bytes: how much it has.
        ledger: what other processes hold.
    """

    def __init__(self, name: str, capacity_bytes: int, ledger: Ledger) -> None:
        self.name = name
        self.capacity_bytes = capacity_bytes
        self.bytes_peak = 0
        self.lock = threading.RLock()
        self._ledger = ledger
        self._blocks: dict[int, Block] = {}  # by address
        self._starts: list[int] = []  # sorted addresses
        self._cache: dict[int, list[torch.Tensor]] = defaultdict(list)  # by size: host memory to use again
        self._cached_bytes = 0

    @property
    def bytes_used(self) -> int:
        with self.lock:
            return sum(block.charged for block in self._blocks.values())

    @property
    def bytes_free(self) -> int:
        return self.capacity_bytes - self.bytes_used - self._ledger.bytes_elsewhere()

    def alloc(self, nbytes: int, alignment: int) -> Block:
        """A block of zeros.

        Raises:
            MemoryInsufficient: with the bytes wanted and free.
        """
        with self.lock:
            free = self.bytes_free
            if charged(nbytes) > free:
                message = f"device {self.name}: {nbytes} bytes wanted, {free} free"
                raise MemoryInsufficient(message)
            whole = self._host_memory(2 * GUARD_BYTES + alignment + charged(nbytes))
            offset = GUARD_BYTES + -(whole.data_ptr() + GUARD_BYTES) % alignment
            block = Block(whole, offset, nbytes)
            whole.fill_(GUARD)
            block.view.fill_(POISON)
            self._blocks[block.start] = block
            self._starts = sorted(self._blocks)
            self._count()
            return block

    def owner(self, tensor: torch.Tensor) -> Block | None:
        """The block that a tensor's storage lies in."""
        with self.lock:
            address = address_of(tensor)
            at = bisect_right(self._starts, address) - 1
            if at < 0:
                return None
            block = self._blocks[self._starts[at]]
            return block if address < block.start + max(1, block.nbytes) else None

    def hold(self, block: Block) -> None:
        """Work that uses the block was queued."""
        with self.lock:
            block.pending += 1

    def release(self, block: Block) -> None:
        """That work is done."""
        with self.lock:
            block.pending -= 1
            if block.is_freed and block.pending == 0:
                self.recycle(block)

    def recycle(self, block: Block) -> None:
        """Make the block's memory available again."""
        with self.lock:
            if self._blocks.pop(block.start, None) is None:
                return
            self._starts = sorted(self._blocks)
            block.whole.fill_(POISON)
            size = block.whole.numel()
            if self._cached_bytes + size <= CACHED_BYTES_MAX:
                self._cache[size].append(block.whole)
                self._cached_bytes += size
            self._count()

    def move(self, block: Block, whole: torch.Tensor, offset: int, nbytes: int) -> None:
        """Let the block lie elsewhere: for faults."""
        with self.lock:
            del self._blocks[block.start]
            block.whole, block.offset, block.nbytes = whole, offset, nbytes
            block.start = address_of(whole) + offset
            self._blocks[block.start] = block
            self._starts = sorted(self._blocks)

    def intact(self, block: Block) -> bool:
        """Whether nothing was written in front of the block or behind it."""
        before = block.whole[: block.offset]
        after = block.whole[block.offset + block.nbytes :]
        return bool((before == GUARD).all()) and bool((after == GUARD).all())

    def broken(self) -> list[Block]:
        """The blocks whose guards were written to."""
        with self.lock:
            return [block for block in self._blocks.values() if not self.intact(block)]

    def _host_memory(self, size: int) -> torch.Tensor:
        if self._cache[size]:
            self._cached_bytes -= size
            return self._cache[size].pop()
        return torch.empty(size, dtype=torch.uint8)

    def _count(self) -> None:
        used = self.bytes_used
        self.bytes_peak = max(self.bytes_peak, used)
        self._ledger.write(used)


__all__ = ["GRANULARITY", "GUARD", "POISON", "Block", "ChipMemory", "address_of", "charged"]
