"""The virtual host at work: cards, the current one of each thread, launches, deferred errors. Knows no op."""

from __future__ import annotations

import itertools
import os
import threading
import time
import weakref
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from functools import partial

import torch

from anychip_kunlun.emulator.graphs import Recorder
from anychip_kunlun.emulator.host import Host
from anychip_kunlun.emulator.memory import Block, CachingAllocator, Driver
from anychip_kunlun.emulator.profile import Fault, Profile
from anychip_kunlun.emulator.streams import QUEUES, Queue, Stream, Work

CHIP_WITH_KERNELS = "P800"

ERRORS = {
    700: "CUDA error: an illegal memory access was encountered",
    714: "CUDA error: unspecified launch failure (XPU error 714, kernel exception)",
}


class Card:
    """One card: its memory, queues and the error that it died of."""

    def __init__(self, index: int, profile: Profile, host: Host) -> None:
        self.index = index
        driver = Driver(
            profile.memory_bytes,
            fragmenting=profile.is_fragmenting,
            others=partial(host.held_elsewhere, index),
            publish=partial(host.publish, index),
        )
        self.allocator = CachingAllocator(index, driver)
        self.queues = [Queue() for _ in range(QUEUES)]
        self.turn = itertools.cycle(self.queues)
        self.error: str | None = None


class Thread(threading.local):
    """What belongs to a thread; a new one starts on card 0."""

    def __init__(self) -> None:
        self.index = 0
        self.streams: dict[int, Stream] = {}
        self.recorder: Recorder | None = None


class Machine:
    """All cards of a profile, in this process.

    Attributes:
        close: ends the threads and leaves the host; happens by itself when nobody uses the machine any more.
        launches: kernels launched so far, by op.
        last_op: the name of the latest.
    """

    def __init__(self, profile: Profile, environ: MutableMapping[str, str], host: Host) -> None:
        self.profile = profile
        self.environ = environ
        self.host = host
        self.cards = [Card(index, profile, self.host) for index in range(profile.cards)]
        self.launches: dict[str, int] = {}
        self.last_op = ""
        self.thread = Thread()
        self._fault = profile.fault
        self._compiled: set[tuple[str, torch.dtype | None]] = set()
        self._defaults = [Stream(self, card.index, None) for card in self.cards]
        self._pid = os.getpid()
        self.close = weakref.finalize(self, _shut, self._pid, self.cards, host)

    # cards and streams

    @property
    def visible(self) -> list[Card]:
        """The cards that XPU_VISIBLE_DEVICES leaves."""
        names = self.environ.get("XPU_VISIBLE_DEVICES")
        if names is None:
            return self.cards
        wanted = [int(name) for name in names.split(",") if name.strip().isdigit()]
        return [self.cards[index] for index in wanted if index < len(self.cards)]

    @property
    def fake_events(self) -> bool:
        return "XPU_DUMMY_EVENT" in self.environ

    def card(self, index: int | None = None) -> Card:
        """The visible card with that index; None: the thread's current one."""
        self.check_process()
        wanted, visible = self.thread.index if index is None else index, self.visible
        if not 0 <= wanted < len(visible):
            message = f"CUDA error: invalid device ordinal ({wanted} of {len(visible)})"
            raise RuntimeError(message)
        return visible[wanted]

    def new_stream(self, index: int | None, priority: int) -> Stream:
        card = self.card(index)
        queue = None if self.profile.blocking_streams else next(card.turn)
        return Stream(self, card.index, queue, priority)

    def current_stream(self, index: int | None = None) -> Stream:
        card = self.card(index)
        return self.thread.streams.get(card.index, self._defaults[card.index])

    def default_stream(self, index: int | None = None) -> Stream:
        return self._defaults[self.card(index).index]

    def synchronize(self, index: int | None = None) -> None:
        card = self.card(index)
        for one in card.queues:
            Stream(self, card.index, one).drain()
        self.raise_errors(card.index)

    def check_process(self) -> None:
        if os.getpid() != self._pid:
            message = (
                "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the "
                "'spawn' start method"
            )
            raise RuntimeError(message)

    # memory

    def empty(self, shape: Sequence[int], dtype: torch.dtype, index: int) -> torch.Tensor:
        card = self.card(index)
        self.raise_errors(card.index)
        return card.allocator.empty(shape, dtype)

    def owner(self, tensor: torch.Tensor) -> tuple[Card, Block] | None:
        """The card that a tensor lives on; None: the host, or a result of torch's own ops."""
        for card in self.cards:
            block = card.allocator.owner(tensor)
            if block is not None:
                return card, block
        return None

    # launches

    def launch(self, op: str, reads: Sequence[torch.Tensor], writes: Sequence[torch.Tensor], run: Work) -> None:
        """Queue a kernel's work on the current stream; in a capture it is only recorded."""
        card, tensors = self.card(), (*reads, *writes)
        if self.profile.chip != CHIP_WITH_KERNELS:
            message = f"Check 0 == ret failed, left operand=712, {op} failed (no kernel for {self.profile.chip})"
            raise ValueError(message)
        self._check_owners(card, op, tensors)
        self.last_op = op
        self.launches[op] = self.launches.get(op, 0) + 1
        if self.thread.recorder is not None:
            self.thread.recorder.add(run, writes)
            return
        self._compile(op, tensors)
        if self._is_faulty(op):
            self.fail(card.index, self._take_fault().code, op)
        if card.error is None:  # a dead card runs nothing more; its results stay what they were
            self.current_stream().put(partial(self._run, card, op, run))

    def fail(self, index: int, code: int, what: str) -> None:
        """A kernel dies; synchronizing the card raises from now on."""
        card = self.cards[index]
        if card.error is None:
            card.error = f"{ERRORS[code]} ({code}), reported asynchronously [{what}]"

    def inject(self, code: int, *, after: int = 1, op: str | None = None) -> None:
        """Let the `after`th launch from now fail."""
        self._fault = Fault(code, self._launches_of(op) + after, op)

    def revive(self, index: int) -> None:
        """What a new process would find: a card without the old error."""
        self.cards[index].error = None

    def raise_errors(self, index: int) -> None:
        error = self.cards[index].error
        if error is not None:
            raise RuntimeError(error)

    @contextmanager
    def recording(self, recorder: Recorder) -> Iterator[None]:
        previous, self.thread.recorder = self.thread.recorder, recorder
        try:
            yield
        finally:
            self.thread.recorder = previous

    def _run(self, card: Card, op: str, run: Work) -> None:
        try:
            run()
        except IndexError as error:  # a kernel that leaves its tensors doesn't raise, it breaks the card
            self.fail(card.index, 700, f"{op}: {error}")

    def _launches_of(self, op: str | None) -> int:
        return sum(self.launches.values()) if op is None else self.launches.get(op, 0)

    def _is_faulty(self, op: str) -> bool:
        file = self.profile.fault_file
        if file is not None and file.exists():
            file.unlink()
            self.inject(700, after=0)
        fault = self._fault
        return fault is not None and fault.op in (None, op) and self._launches_of(fault.op) >= fault.launch

    def _take_fault(self) -> Fault:
        fault, self._fault = self._fault, None
        assert fault is not None
        return fault

    def _check_owners(self, card: Card, op: str, tensors: Sequence[torch.Tensor]) -> None:
        owners = {owner[0].index for owner in map(self.owner, tensors) if owner is not None}
        if len(owners) > 1:
            first, second, *_ = sorted(owners)
            message = (
                f"Expected all tensors to be on the same device, but found at least two devices, cuda:{first} and "
                f"cuda:{second}! [{op}]"
            )
            raise RuntimeError(message)
        if owners and owners != {card.index}:
            self.fail(card.index, 700, f"{op}: tensors of cuda:{owners.pop()}, current device cuda:{card.index}")

    def _compile(self, op: str, tensors: Sequence[torch.Tensor]) -> None:
        key = (op, tensors[0].dtype if tensors else None)
        if self.profile.compile_s and key not in self._compiled:
            self._compiled.add(key)
            time.sleep(self.profile.compile_s)


def _shut(pid: int, cards: Sequence[Card], host: Host) -> None:
    if os.getpid() == pid:  # a forked child has no threads to end
        for card in cards:
            for one in card.queues:
                one.close()
        host.leave()


__all__ = ["ERRORS", "Card", "Machine", "Thread"]
