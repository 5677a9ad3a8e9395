"""Streams and events of the accelerator behind the SDK's face, shared out over the chip's queues. Knows no copy."""

from __future__ import annotations

from typing import Any

import torch

from anychip_kunlun.trail import Trail
from anychip_sdk.device import Event, Stream

#: what the chip runs at the same time; further streams share a queue with another
QUEUES_MAX = 8
HIGH = -1  #: torch.cuda's number for a stream that runs first


class KunlunEvent(Event):
    """An event of the accelerator, with a time."""

    def __init__(self, raw: Any, trail: Trail) -> None:
        self._raw = raw
        self._trail = trail

    @property
    def raw(self) -> Any:
        return self._raw

    def query(self) -> bool:
        return bool(self._trail.waiting(self._raw.query))

    def synchronize(self) -> None:
        self._trail.waiting(self._raw.synchronize)

    def elapsed_s(self, since: Event) -> float:
        if not isinstance(since, KunlunEvent):
            message = f"{type(since).__name__} is not an event of this device"
            raise TypeError(message)
        return float(since.raw.elapsed_time(self._raw)) / 1000


class KunlunStream(Stream):
    """A stream of the accelerator. Tensors that its copies use are kept until they are done."""

    def __init__(self, raw: Any, accelerator: Any, trail: Trail) -> None:
        self.raw = raw
        self._accelerator = accelerator
        self._trail = trail
        self._held: list[tuple[KunlunEvent, tuple[torch.Tensor, ...]]] = []

    def record(self) -> KunlunEvent:
        self._trail.check()
        event = self._accelerator.Event(enable_timing=True)
        event.record(self.raw)
        return KunlunEvent(event, self._trail)

    def wait(self, event: Event) -> None:
        if not isinstance(event, KunlunEvent):
            message = f"{type(event).__name__} is not an event of this device"
            raise TypeError(message)
        self.raw.wait_event(event.raw)

    def synchronize(self) -> None:
        self._trail.waiting(self.raw.synchronize)
        self._held.clear()

    def hold(self, *tensors: torch.Tensor) -> None:
        """Keep the memory of what was queued just now: the allocator knows no other stream than its own."""
        self._held = [(event, kept) for event, kept in self._held if not event.query()]
        self._held.append((self.record(), tensors))


class Queues:
    """The accelerator's streams, at most as many as the chip has queues."""

    def __init__(self, accelerator: Any, index: int) -> None:
        self._accelerator = accelerator
        self._index = index
        self._users: dict[Any, int] = {}

    def take(self, priority: int) -> Any:
        """A queue of its own while there are any, else the one with the fewest users."""
        if len(self._users) < QUEUES_MAX:
            raw = self._accelerator.Stream(device=self._index, priority=HIGH if priority < 0 else 0)
            self._users[raw] = 0
        else:
            raw = min(self._users, key=lambda one: self._users[one])
        self._users[raw] += 1
        return raw

    def give(self, raw: Any) -> None:
        """One user less; a queue without users is released."""
        if raw in self._users:
            self._users[raw] -= 1
            if not self._users[raw]:
                del self._users[raw]


__all__ = ["QUEUES_MAX", "KunlunEvent", "KunlunStream", "Queues"]
