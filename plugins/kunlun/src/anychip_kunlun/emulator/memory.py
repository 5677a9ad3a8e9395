"""The memory of one virtual card: a driver that counts and a caching allocator on top. Knows bytes; knows no stream.

As torch's allocator does, small requests are cut from segments of 2 MiB and larger ones from segments of 20 MiB or of
their own; freed blocks stay reserved until `empty_cache`. Segments lie in memory maps of the host. A tensor holds its
block through the buffer that it was made from, so the block is free when the last view of the tensor is gone.
"""

from __future__ import annotations

import math
import mmap
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

GRANULE = 512
SMALL_MAX, SMALL_SEGMENT = 1 << 20, 2 << 20
MEDIUM_MAX, MEDIUM_SEGMENT = 10 << 20, 20 << 20
POISON = 0xFF  #: NaN in every floating dtype, -1 in integers
POISON_WHOLE_MAX = 64 << 20  #: of larger blocks only the ends are poisoned, so that untouched memory costs nothing
POISON_END = 1 << 20


class OutOfDeviceMemory(torch.OutOfMemoryError):
    """What torch raises, with the runtime's code."""


@dataclass
class Range:
    start: int
    nbytes: int


class Driver:
    """Ranges of a card's memory. Freed neighbours merge, unless the card is `fragmenting`.

    Args:
        capacity: in bytes.
        others: bytes that other processes hold of the card.
        publish: told how many this process holds.
    """

    def __init__(
        self, capacity: int, *, fragmenting: bool, others: Callable[[], int], publish: Callable[[int], None]
    ) -> None:
        self.capacity = capacity
        self.allocations = 0  #: counted since the start
        self._others = others
        self._publish = publish
        self._fragmenting = fragmenting
        self._free = [Range(0, capacity)]
        self._held = 0

    @property
    def held(self) -> int:
        return self._held

    @property
    def free(self) -> int:
        return max(0, self.capacity - self._held - self._others())

    def alloc(self, nbytes: int) -> Range | None:
        fitting = [one for one in self._free if one.nbytes >= nbytes]
        if not fitting or nbytes > self.free:
            return None
        best = min(fitting, key=lambda one: one.nbytes)
        taken = Range(best.start, nbytes)
        best.start += nbytes
        best.nbytes -= nbytes
        if not best.nbytes:
            self._free.remove(best)
        self.allocations += 1
        self._hold(nbytes)
        return taken

    def release(self, taken: Range) -> None:
        self._free.append(taken)
        self._hold(-taken.nbytes)
        if not self._fragmenting:
            self._merge()

    def _hold(self, nbytes: int) -> None:
        self._held += nbytes
        self._publish(self._held)

    def _merge(self) -> None:
        merged: list[Range] = []
        for one in sorted(self._free, key=lambda one: one.start):
            if merged and merged[-1].start + merged[-1].nbytes == one.start:
                merged[-1].nbytes += one.nbytes
            else:
                merged.append(one)
        self._free = merged


@dataclass(eq=False)
class Segment:
    """One allocation of the driver, backed by the host."""

    range: Range
    area: mmap.mmap
    bytes: torch.Tensor  #: all of it, owned by no block
    blocks: list[Block] = field(default_factory=list)  #: in order of address


@dataclass(eq=False)
class Block:
    """A part of a segment."""

    segment: Segment
    start: int
    nbytes: int
    is_free: bool = True
    uses: int = 0  #: how often it was handed out; tells one owner from the next

    @property
    def address(self) -> int:
        return self.segment.bytes.data_ptr() + self.start

    def poison(self) -> None:
        whole = self.segment.bytes[self.start : self.start + self.nbytes]
        if self.nbytes <= POISON_WHOLE_MAX:
            whole.fill_(POISON)
        else:
            whole[:POISON_END].fill_(POISON)
            whole[-POISON_END:].fill_(POISON)


class CachingAllocator:
    """Tensors on one card."""

    def __init__(self, card: int, driver: Driver) -> None:
        self.driver = driver
        self.ooms = 0
        self._card = card
        self._fragmenting = driver._fragmenting
        self._segments: list[Segment] = []
        self._live: dict[int, Block] = {}  # by address
        self._returned: deque[Block] = deque()  # by finalizers, which may run at any point of any thread
        self._lock = threading.RLock()
        self._peak = 0

    @property
    def allocated(self) -> int:
        with self._lock:
            self._collect()
            return sum(block.nbytes for block in self._live.values())

    @property
    def reserved(self) -> int:
        return self.driver.held

    @property
    def peak(self) -> int:
        return max(self._peak, self.allocated)

    def reset_peak(self) -> None:
        self._peak = self.allocated

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised tensor: full of NaN.

        Raises:
            OutOfDeviceMemory: no free range is large enough.
        """
        count = math.prod(shape)
        if count == 0:
            return torch.empty(tuple(shape), dtype=dtype)
        block = self._take(count * dtype.itemsize)
        buffer = memoryview(block.segment.area)[block.start : block.start + block.nbytes]
        weakref.finalize(buffer, self._returned.append, block).atexit = False
        return torch.frombuffer(buffer, dtype=dtype, count=count).view(tuple(shape))

    def owner(self, tensor: torch.Tensor) -> Block | None:
        """The block that a tensor lies in; None: it is not of this card."""
        return self._live.get(tensor.untyped_storage().data_ptr())

    def holds(self, block: Block, uses: int) -> bool:
        """Whether a block still belongs to its `uses`th owner."""
        with self._lock:
            self._collect()
            return not block.is_free and block.uses == uses

    def empty_cache(self) -> None:
        """Give back to the driver all segments that hold no tensor."""
        with self._lock:
            self._collect()
            for segment in [one for one in self._segments if all(block.is_free for block in one.blocks)]:
                self._segments.remove(segment)
                segment.blocks.clear()  # they refer to each other: the host's memory goes now, not with the next gc
                self.driver.release(segment.range)

    def stats(self) -> dict[str, int]:
        with self._lock:
            allocated = self.allocated
            return {
                "allocated_bytes.all.current": allocated,
                "allocated_bytes.all.peak": self.peak,
                "reserved_bytes.all.current": self.reserved,
                "active.all.current": len(self._live),
                "segment.all.current": len(self._segments),
                "num_device_alloc": self.driver.allocations,
                "num_ooms": self.ooms,
            }

    def _take(self, nbytes: int) -> Block:
        size = -(-nbytes // GRANULE) * GRANULE
        with self._lock:
            self._collect()
            block = self._fitting(size) or self._grow(size)
            if block is None:
                self.empty_cache()
                block = self._grow(size)
            if block is None:
                self.ooms += 1
                raise self._out_of_memory(nbytes)
            self._split(block, size)
            block.is_free = False
            block.uses += 1
            block.poison()
            self._live[block.address] = block
            self._peak = max(self._peak, sum(one.nbytes for one in self._live.values()))
            return block

    def _collect(self) -> None:
        """Free the blocks whose last tensor is gone."""
        with self._lock:
            while self._returned:
                block = self._returned.popleft()
                del self._live[block.address]
                block.poison()
                block.is_free = True
                if not self._fragmenting:
                    self._merge(block)

    def _fitting(self, size: int) -> Block | None:
        is_small = size <= SMALL_MAX
        free = [
            block
            for segment in self._segments
            if (segment.range.nbytes == SMALL_SEGMENT) == is_small
            for block in segment.blocks
            if block.is_free and block.nbytes >= size
        ]
        return min(free, key=lambda block: block.nbytes, default=None)

    def _grow(self, size: int) -> Block | None:
        if size <= SMALL_MAX:
            wanted = SMALL_SEGMENT
        elif size < MEDIUM_MAX:
            wanted = MEDIUM_SEGMENT
        else:
            wanted = -(-size // SMALL_SEGMENT) * SMALL_SEGMENT
        taken = self.driver.alloc(wanted)
        if taken is None:
            return None
        area = mmap.mmap(-1, wanted, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        segment = Segment(taken, area, torch.frombuffer(area, dtype=torch.uint8))
        block = Block(segment, 0, wanted)
        segment.blocks.append(block)
        self._segments.append(segment)
        return block

    def _split(self, block: Block, size: int) -> None:
        rest = block.nbytes - size
        least = GRANULE if size <= SMALL_MAX else SMALL_MAX
        if rest < least:
            return
        block.nbytes = size
        blocks = block.segment.blocks
        blocks.insert(blocks.index(block) + 1, Block(block.segment, block.start + size, rest))

    def _merge(self, block: Block) -> None:
        blocks = block.segment.blocks
        at = blocks.index(block)
        for left, right in ((at, at + 1), (at - 1, at)):
            if left >= 0 and right < len(blocks) and blocks[left].is_free and blocks[right].is_free:
                blocks[left].nbytes += blocks[right].nbytes
                del blocks[right]

    def _out_of_memory(self, nbytes: int) -> OutOfDeviceMemory:
        return OutOfDeviceMemory(
            f"CUDA out of memory (XPU error 705). Tried to allocate {nbytes} bytes. GPU {self._card} has a total "
            f"capacity of {self.driver.capacity} bytes of which {self.driver.free} are free; {self.allocated} bytes "
            f"are allocated and {self.reserved} reserved by torch. If reserved but unallocated memory is large, the "
            "memory is fragmented"
        )


__all__ = ["GRANULE", "POISON", "Block", "CachingAllocator", "Driver", "OutOfDeviceMemory", "Range", "Segment"]
