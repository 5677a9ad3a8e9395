"""A device in host memory that behaves like a chip: asynchronous, counted, strict. Knows no kernel and no requirement.

Each behaviour that a chip can get wrong is one small method, so that a broken device is a subclass with one override.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence

import torch

from anychip_sdk.conformance.reference.memory import Block, ChipMemory, address_of
from anychip_sdk.conformance.reference.streams import WorkerStream
from anychip_sdk.device import Capabilities, DeviceConfig, MemoryInfo, Stream
from anychip_sdk.errors import BackendBroken, DeviceAbsent
from anychip_sdk.testing.device import ReferenceDevice

CAPABILITIES = Capabilities(
    dtypes=(torch.float32, torch.bfloat16, torch.float16, torch.float64),
    async_streams=True,
)


class AsyncReferenceDevice(ReferenceDevice):
    """One opened chip of several.

    Args:
        index: of the chip.
        chips: the memories of all chips of this backend; the own one is chips[index].
    """

    stream_class: type[WorkerStream] = WorkerStream

    def __init__(self, index: int, chips: Sequence[ChipMemory]) -> None:
        self.memory_of_chip = chips[index]
        super().__init__(self.memory_of_chip.name.partition(":")[0], self.memory_of_chip.capacity_bytes)
        self.device_name = self.memory_of_chip.name
        self._chips = chips
        self._process = os.getpid()
        self._streams: list[WorkerStream] = []
        self._blocks: dict[int, Block] = {}  # of this opened device, by address
        self._errors: list[tuple[str, Exception]] = []
        self._lock = threading.RLock()

    # what it is

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    def resolve(self, name: str) -> torch.device:
        present = [chip.name for chip in self._chips]
        if name not in (self.name, *present):
            message = f"backend '{self.name}': no device '{name}'; present: {', '.join(present)}"
            raise DeviceAbsent(message)
        return self.torch_device

    def versions(self) -> Mapping[str, str]:
        return {"driver": "1.0", "runtime": "1.0"}

    # lifecycle

    def init(self, config: DeviceConfig) -> None:
        self.is_open = True

    def close(self) -> None:
        """Finish all work, end all streams, give all memory back."""
        if not self.is_open:
            return
        self.is_open = False
        with self._lock:
            streams, self._streams = self._streams, []
        for stream in streams:
            stream.stop()
        for block in tuple(self._blocks.values()):
            self._release_block(block)
        self._blocks.clear()

    # memory

    @property
    def bytes_used(self) -> int:
        return self.memory_of_chip.bytes_used

    def memory(self) -> MemoryInfo:
        return MemoryInfo(self.capacity_bytes, self._bytes_free())

    def alloc(self, nbytes: int, alignment: int = 64) -> torch.Tensor:
        self._check_process()
        block = self._take(nbytes, alignment)
        self._clear(block)
        self._blocks[block.start] = block
        return block.view

    def free(self, buffer: torch.Tensor) -> None:
        """Give back a buffer of `alloc`.

        Raises:
            ValueError: it is not one of this device, or was given back already.
        """
        self._check_process()
        block = self._blocks.pop(address_of(buffer), None)
        if block is None:
            self._refuse_free(buffer)
            return
        self._check_guards(block)
        self._release_block(block)

    def _bytes_free(self) -> int:
        return self.memory_of_chip.bytes_free

    def _take(self, nbytes: int, alignment: int) -> Block:
        """Memory for a buffer; freed buffers that queued work still uses are waited for where nothing else is left."""
        if nbytes > self._bytes_free():
            self._drain_streams()
        return self.memory_of_chip.alloc(nbytes, alignment)

    def _clear(self, block: Block) -> None:
        block.view.zero_()

    def _release_block(self, block: Block) -> None:
        """Recycle now, or when the last queued work that uses it is done."""
        with self.memory_of_chip.lock:
            block.is_freed = True
            if block.pending == 0:
                self.memory_of_chip.recycle(block)

    def _check_guards(self, block: Block) -> None:
        if not self.memory_of_chip.intact(block):
            self._defer("free", ValueError(f"something was written next to a buffer of {block.nbytes} bytes"))

    def _refuse_free(self, buffer: torch.Tensor) -> None:
        message = f"device {self.device_name}: the buffer at {address_of(buffer):#x} is not allocated"
        raise ValueError(message)

    # copies

    def copy(self, dst: torch.Tensor, src: torch.Tensor, stream: Stream | None = None) -> None:
        self._check_process()
        self._check_buffers(dst, src)
        if stream is None:
            self._copy_now(dst, src)
            return
        queue = self._own(stream)
        source = self._source(src)
        blocks = self._hold(dst, source)
        self._submit_copy(queue, lambda: self._copy_now(dst, source), lambda: self._unhold(blocks))
        if self._is_on_host(dst):
            queue.synchronize()

    def _submit_copy(self, stream: WorkerStream, run: Callable[[], None], finished: Callable[[], None]) -> None:
        stream.submit("copy", run, finished)

    def _copy_now(self, dst: torch.Tensor, src: torch.Tensor) -> None:
        if dst.untyped_storage().data_ptr() == src.untyped_storage().data_ptr():
            src = src.clone()
        dst.copy_(src)

    def _source(self, src: torch.Tensor) -> torch.Tensor:
        """What the queued copy reads: the host's memory may change as soon as the call has returned."""
        return src.clone() if self._is_on_host(src) else src

    def _is_on_host(self, tensor: torch.Tensor) -> bool:
        return self.memory_of_chip.owner(tensor) is None

    def _hold(self, *tensors: torch.Tensor) -> list[Block]:
        blocks = [block for block in map(self.memory_of_chip.owner, tensors) if block is not None]
        for block in blocks:
            self.memory_of_chip.hold(block)
        return blocks

    def _unhold(self, blocks: Sequence[Block]) -> None:
        for block in blocks:
            self.memory_of_chip.release(block)

    # streams

    def create_stream(self, priority: int = 0) -> Stream:
        self._check_process()
        stream = self._new_stream(priority)
        with self._lock:
            self._streams.append(stream)
        return stream

    def destroy_stream(self, stream: Stream) -> None:
        queue = self._own(stream)
        with self._lock:
            self._streams.remove(queue)
        self._end_stream(queue)
        self._raise_errors()

    def delay(self, stream: Stream, seconds: float) -> None:
        self._check_process()
        ended = threading.Event()  # never set: waiting for it is a delay that leaves the processor to others

        def run() -> None:
            ended.wait(seconds)

        self._own(stream).submit("delay", run)

    def synchronize(self) -> None:
        self._check_process()
        self._drain_streams()
        self._raise_errors()

    def _new_stream(self, priority: int) -> WorkerStream:
        return self.stream_class(self.device_name, priority, self._defer, self._raise_errors)

    def _end_stream(self, stream: WorkerStream) -> None:
        stream.stop()

    def _drain_streams(self) -> None:
        with self._lock:
            streams = tuple(self._streams)
        for stream in streams:
            stream.drain()

    # errors

    def _defer(self, name: str, error: Exception) -> None:
        """Keep an error of queued work for the next synchronize."""
        with self._lock:
            self._errors.append((name, error))

    def _raise_errors(self) -> None:
        with self._lock:
            errors, self._errors = self._errors, []
        if errors:
            name, error = errors[0]
            message = f"device {self.device_name}: {name}: {error}"
            raise BackendBroken(message) from error

    def _check_process(self) -> None:
        """A forked child has no stream threads."""
        if os.getpid() != self._process:
            message = f"device {self.device_name} was opened in process {self._process}, not in this one"
            raise DeviceAbsent(message, hint="open devices after a fork, or start processes with spawn")

    def _check_buffers(self, *tensors: torch.Tensor) -> None:
        for chip in self._chips:
            if chip is not self.memory_of_chip and any(chip.owner(tensor) is not None for tensor in tensors):
                message = f"device {self.device_name}: a buffer of {chip.name} was given"
                raise ValueError(message)

    def _own(self, stream: Stream) -> WorkerStream:
        if not isinstance(stream, WorkerStream) or not self._is_own(stream):
            message = f"device {self.device_name}: {stream!r} is not one of its streams"
            raise ValueError(message)
        return stream

    def _is_own(self, stream: WorkerStream) -> bool:
        return stream in self._streams


__all__ = ["CAPABILITIES", "AsyncReferenceDevice"]
