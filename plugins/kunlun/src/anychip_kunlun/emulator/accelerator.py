"""The namespace that stands for torch.cuda: the same names over virtual cards. Knows no op and no vendor module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from anychip_kunlun.emulator import streams
from anychip_kunlun.emulator.graphs import Capture, Drained, Recorder
from anychip_kunlun.emulator.machine import Machine
from anychip_kunlun.emulator.memory import OutOfDeviceMemory

#: what the shim says of every card, whatever it is
NAME, CAPABILITY = "GPU", (8, 6)
CLUSTERS = 12
GRAPH_VARIABLE = "XMLIR_FORCE_USE_XPU_GRAPH"


@dataclass(frozen=True)
class DeviceProperties:
    name: str
    total_memory: int
    multi_processor_count: int
    major: int
    minor: int


class Accelerator:
    """torch.cuda of the emulated stack.

    Attributes:
        emulator: the machine behind it, for tests: counters, `inject`.
    """

    OutOfMemoryError = torch.OutOfMemoryError

    def __init__(self, machine: Machine) -> None:
        self.emulator = machine
        self._raw: dict[int, torch.Tensor] = {}

    # devices

    def is_available(self) -> bool:
        return self.device_count() > 0

    def is_initialized(self) -> bool:
        return self.is_available()

    def init(self) -> None:
        self.emulator.card()

    def device_count(self) -> int:
        return len(self.emulator.visible) if self.emulator.profile.nodes == "all" else 0

    def current_device(self) -> int:
        return self.emulator.thread.index

    def set_device(self, device: Any) -> None:
        index = _index(device)
        if index is not None:
            self.emulator.card(index)
            self.emulator.thread.index = index

    @contextmanager
    def device(self, device: Any) -> Iterator[None]:
        previous = self.current_device()
        self.set_device(device)
        try:
            yield
        finally:
            self.set_device(previous)

    def get_device_name(self, device: Any = None) -> str:
        self.emulator.card(_index(device))
        return NAME

    def get_device_capability(self, device: Any = None) -> tuple[int, int]:
        self.emulator.card(_index(device))
        return CAPABILITY

    def get_device_properties(self, device: Any = None) -> DeviceProperties:
        card = self.emulator.card(_index(device))
        return DeviceProperties(NAME, card.allocator.driver.capacity, CLUSTERS, *CAPABILITY)

    def synchronize(self, device: Any = None) -> None:
        self.emulator.synchronize(_index(device))

    # memory

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        driver = self.emulator.card(_index(device)).allocator.driver
        return driver.free, driver.capacity

    def memory_allocated(self, device: Any = None) -> int:
        return self.emulator.card(_index(device)).allocator.allocated

    def max_memory_allocated(self, device: Any = None) -> int:
        return self.emulator.card(_index(device)).allocator.peak

    def reset_peak_memory_stats(self, device: Any = None) -> None:
        self.emulator.card(_index(device)).allocator.reset_peak()

    def memory_reserved(self, device: Any = None) -> int:
        return self.emulator.card(_index(device)).allocator.reserved

    def memory_stats(self, device: Any = None) -> dict[str, int]:
        return self.emulator.card(_index(device)).allocator.stats()

    def empty_cache(self) -> None:
        for card in self.emulator.visible:
            card.allocator.empty_cache()

    def caching_allocator_alloc(self, size: int, device: Any = None, stream: Any = None) -> int:
        """Memory by its address, kept until it is deleted."""
        index = self.current_device() if device is None else _index(device) or 0
        buffer = self.emulator.empty((size,), torch.uint8, index)
        self._raw[buffer.data_ptr()] = buffer
        return buffer.data_ptr()

    def caching_allocator_delete(self, address: int) -> None:
        del self._raw[address]

    # streams and events

    def Stream(self, device: Any = None, priority: int = 0) -> streams.Stream:
        return self.emulator.new_stream(_index(device), priority)

    def Event(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> streams.Event:
        if interprocess:
            message = "CUDA error: operation not supported (XPU error 712): events between processes"
            raise RuntimeError(message)
        return streams.Event(self.emulator, enable_timing)

    def current_stream(self, device: Any = None) -> streams.Stream:
        return self.emulator.current_stream(_index(device))

    def default_stream(self, device: Any = None) -> streams.Stream:
        return self.emulator.default_stream(_index(device))

    def set_stream(self, stream: streams.Stream) -> None:
        self.emulator.thread.streams[stream.index] = stream
        self.emulator.thread.index = [card.index for card in self.emulator.visible].index(stream.index)

    @contextmanager
    def stream(self, stream: streams.Stream | None) -> Iterator[None]:
        if stream is None:
            yield
            return
        thread = self.emulator.thread
        index, previous = thread.index, thread.streams.get(stream.index)
        self.set_stream(stream)
        try:
            with Drained(stream.drain):
                yield
        finally:
            thread.index = index
            if previous is None:
                del thread.streams[stream.index]
            else:
                thread.streams[stream.index] = previous

    # graphs

    def CUDAGraph(self) -> Graph:
        return Graph(self.emulator)

    def is_current_stream_capturing(self) -> bool:
        return self.emulator.thread.recorder is not None

    @contextmanager
    def graph(self, graph: Graph, pool: object = None, stream: streams.Stream | None = None) -> Iterator[None]:
        self.emulator.card()
        if self.emulator.environ.get(GRAPH_VARIABLE) != "1" or not self.emulator.profile.has_graphs:
            message = (
                f"CUDA error: operation not supported (XPU error 712): stream capture ({GRAPH_VARIABLE}=1 is set?)"
            )
            raise RuntimeError(message)
        graph.recorder = Recorder()
        capture: TorchDispatchMode = Capture(graph.recorder)
        with self.emulator.recording(graph.recorder), capture:
            yield


class Graph:
    """A captured graph."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.recorder: Recorder | None = None

    def replay(self) -> None:
        recorder = self.recorder
        if recorder is None:
            message = "CUDA error: the graph was not captured"
            raise RuntimeError(message)
        run: Callable[[], None] = recorder.run
        if self._machine.profile.garbled_replay:
            run = self._garbled(recorder)
        self._machine.launch("graph_replay", (), (), run)

    def reset(self) -> None:
        self.recorder = None

    def pool(self) -> tuple[int, int]:
        return (0, id(self))

    def _garbled(self, recorder: Recorder) -> Callable[[], None]:
        def run() -> None:
            recorder.run()
            for written in recorder.written:
                if written.numel() > 1:
                    written.copy_(written.flatten().roll(1).view(written.shape))

        return run


def _index(device: Any) -> int | None:
    """The index in what torch.cuda accepts for a device."""
    if device is None:
        return None
    if isinstance(device, int):
        return device
    device = torch.device(device)
    return int(device.index) if device.index is not None else None


__all__ = ["CAPABILITY", "NAME", "Accelerator", "DeviceProperties", "Graph", "OutOfDeviceMemory"]
