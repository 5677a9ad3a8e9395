"""What a device is to anychip: its lifecycle, memory, copies and streams. Knows bytes and seconds; knows no op."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from anychip_sdk.speeds import Speeds


@dataclass(frozen=True)
class Capabilities:
    """What a device can do, as data. Every default is the conservative answer."""

    dtypes: tuple[torch.dtype, ...] = (
        torch.float32,
    )  #: the first is what `dtype: auto` takes if the checkpoint's is absent
    async_streams: bool = False
    page_size: int | None = None  #: tokens per KV page that suit its attention; None: the platform's choice
    prefill_tokens: int | None = None  #: prompt tokens in a step from which more make it hardly faster per token


@dataclass(frozen=True)
class DeviceInfo:
    """One device that `anychip_probe` found: all that a plan may know of it, so that planning opens nothing."""

    name: str  #: the backend's own name for it, e.g. "cpu:0"
    product: str  #: what a person would call it
    memory_bytes_total: int
    memory_bytes_free: int
    capabilities: Capabilities = field(default_factory=Capabilities)  #: the opened device reports the same
    versions: Mapping[str, str] = field(
        default_factory=dict
    )  #: of driver, runtime, sdk, firmware; compared with requires
    attributes: Mapping[str, str] = field(default_factory=dict)  #: architecture, cores ...; shown, never interpreted
    speeds: Speeds | None = None  #: by its data sheet, for a plan's times; what was measured here counts instead


@dataclass(frozen=True)
class MemoryInfo:
    """The device's memory now; 0 <= free <= total, in bytes."""

    bytes_total: int
    bytes_free: int


@dataclass(frozen=True)
class DeviceConfig:
    """What the recipe says about the device."""

    emulate: bool = False
    threads: int | None = None  #: host threads that the worker may use; None: the backend's choice
    options: Mapping[str, str] = field(default_factory=dict)


class Event(ABC):
    """A point in a stream."""

    @abstractmethod
    def query(self) -> bool:
        """True once everything recorded before it is done; never blocks."""

    @abstractmethod
    def synchronize(self) -> None:
        """Block the host until the event is done."""

    @abstractmethod
    def elapsed_s(self, since: Event) -> float:
        """Seconds on the device's clock between `since` and this event; both must be done."""


class Stream(ABC):
    """An ordered queue of work on a device."""

    @abstractmethod
    def record(self) -> Event:
        """An event behind everything queued so far."""

    @abstractmethod
    def wait(self, event: Event) -> None:
        """Let later work of this stream wait for `event`, without blocking the host."""

    @abstractmethod
    def synchronize(self) -> None:
        """Block the host until the stream is empty."""


class Device(ABC):
    """An opened device: the lifecycle and stream interface.

    Required: `torch_device`, `capabilities`, `memory`, `synchronize`, `resolve`, `versions`.
    The rest has a default that is right for a device whose memory torch manages and that runs in order.
    """

    @property
    @abstractmethod
    def torch_device(self) -> torch.device:
        """Where tensors of this device live."""

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """The same frozen value on each call."""

    @abstractmethod
    def memory(self) -> MemoryInfo:
        """Total and free bytes now."""

    @abstractmethod
    def synchronize(self) -> None:
        """Block the host until all streams are empty; raises a deferred error of the device here at the latest."""

    @abstractmethod
    def resolve(self, name: str) -> torch.device:
        """Translate a recipe's device name, in the backend's own words or a style that it claims to know, to torch's.

        Raises:
            DeviceAbsent: a name that this backend doesn't know, or an index that is not there.
        """

    @abstractmethod
    def versions(self) -> Mapping[str, str]:
        """The versions of driver, runtime, sdk and firmware, as far as they exist; others are left out."""

    def init(self, config: DeviceConfig) -> None:
        """(optional) Make the device ready: libraries, threads. Called once, before anything else. Default: nothing."""

    def close(self) -> None:
        """(optional) Release everything; may be called twice. Default: nothing."""

    def alloc(self, nbytes: int, alignment: int = 64) -> torch.Tensor:
        """(optional) A zeroed uint8 tensor of `nbytes` on the device. Default: torch.zeros.

        Raises:
            MemoryInsufficient: with the bytes wanted and free.
        """
        from anychip_sdk.errors import MemoryInsufficient

        try:
            buffer = torch.zeros(nbytes, dtype=torch.uint8, device=self.torch_device)
        except (RuntimeError, MemoryError) as error:
            message = f"device {self.torch_device}: {nbytes} bytes wanted, {self.memory().bytes_free} free"
            raise MemoryInsufficient(message) from error
        if buffer.data_ptr() % alignment:
            message = f"device {self.torch_device}: an allocation is not aligned to {alignment} bytes"
            raise MemoryInsufficient(message)
        return buffer

    def free(self, buffer: torch.Tensor) -> None:
        """(optional) Give `buffer` back. Default: dropping the last reference is enough.

        Work queued on a stream may still use it: its memory is not handed out again before that work is done.
        """

    def copy(self, dst: torch.Tensor, src: torch.Tensor, stream: Stream | None = None) -> None:
        """(optional) Copy `src` to `dst`, between host and device or within one. Default: Tensor.copy_, in order.

        With a stream it is queued there; without one it follows everything that ran without a stream. When it returns,
        a host tensor is no longer needed as a source and is complete as a target. A copy from the host should not wait
        for what it follows, where streams are asynchronous: steps are submitted while others run. What can't be copied
        raises here or at the next synchronize. Views that overlap are refused, or copied as if through a third.
        """
        dst.copy_(src)

    def delay(self, stream: Stream, seconds: float) -> None:
        """(optional) Keep `stream` busy for about that long, on the device. Default: refused.

        The conformance suite proves order and asynchrony with it; required with the capability `async_streams`.
        """
        message = f"device {self.torch_device}: {type(self).__name__}.delay is missing; async_streams needs it"
        raise NotImplementedError(message)

    def record(self) -> Event:
        """(optional) An event behind everything that ran without a stream; waits for nothing itself.

        Default: one that is done, which is right where such work is done when its call returns.
        """
        return HostEvent()

    def create_stream(self, priority: int = 0) -> Stream:
        """(optional) A new stream; a lower priority number runs first. Default: one that runs in order, at once."""
        return HostStream()

    def destroy_stream(self, stream: Stream) -> None:
        """(optional) Wait for the stream's work and release it. Default: synchronize."""
        stream.synchronize()


class HostEvent(Event):
    """An event of a stream that runs everything at once: always done."""

    def __init__(self) -> None:
        import time

        self.time_s = time.perf_counter()

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        return

    def elapsed_s(self, since: Event) -> float:
        if not isinstance(since, HostEvent):
            message = f"{type(since).__name__} is not an event of this device"
            raise TypeError(message)
        return self.time_s - since.time_s


class HostStream(Stream):
    """A stream of a device that runs in order on the host."""

    def record(self) -> Event:
        return HostEvent()

    def wait(self, event: Event) -> None:
        event.synchronize()

    def synchronize(self) -> None:
        return


__all__ = [
    "Capabilities",
    "Device",
    "DeviceConfig",
    "DeviceInfo",
    "Event",
    "HostEvent",
    "HostStream",
    "MemoryInfo",
    "Stream",
]
