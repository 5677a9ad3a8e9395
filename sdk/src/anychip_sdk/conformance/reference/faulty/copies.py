"""Faults of copies: wrong bytes, wrong moments, wrong lifetimes. Knows no check."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from anychip_sdk.conformance.reference.device import AsyncReferenceDevice
from anychip_sdk.conformance.reference.faulty.base import device_fault
from anychip_sdk.conformance.reference.memory import Block
from anychip_sdk.conformance.reference.streams import WorkerStream
from anychip_sdk.device import Stream


@device_fault("AC-COPY-001")
class TailIsNotCopied(AsyncReferenceDevice):
    """Copies move whole blocks of 16 bytes; what is behind the last one stays."""

    def _copy_now(self, dst: torch.Tensor, src: torch.Tensor) -> None:
        if not (dst.is_contiguous() and src.is_contiguous()) or dst.shape != src.shape:
            super()._copy_now(dst, src)
            return
        count = dst.nbytes // 16 * 16 // dst.element_size()
        super()._copy_now(dst.view(-1)[:count], src.view(-1)[:count])


@device_fault("AC-COPY-001")
class NanIsNormalised(AsyncReferenceDevice):
    """Copies go through arithmetic, so that the bits of a NaN are lost."""

    def _copy_now(self, dst: torch.Tensor, src: torch.Tensor) -> None:
        super()._copy_now(dst, src.nan_to_num(nan=float("nan")) if src.is_floating_point() else src)


@device_fault("AC-COPY-002")
class CopyWritesTooMuch(AsyncReferenceDevice):
    """A copy within the device writes up to the next 4 bytes behind its target."""

    def _copy_now(self, dst: torch.Tensor, src: torch.Tensor) -> None:
        super()._copy_now(dst, src)
        end = dst.storage_offset() + dst.numel()
        whole = torch.empty(0, dtype=dst.dtype).set_(dst.untyped_storage())
        if dst.dtype == torch.uint8 and dst.is_contiguous() and self.memory_of_chip.owner(dst) and dst.numel() % 4:
            whole[end : end + 4 - dst.numel() % 4] = 0


@device_fault("AC-COPY-003")
class StridesAreIgnored(AsyncReferenceDevice):
    """A strided source is read as if it were dense."""

    def _copy_now(self, dst: torch.Tensor, src: torch.Tensor) -> None:
        dense = torch.empty(src.shape, dtype=src.dtype, device="meta").stride()
        in_reach = src.storage_offset() + src.numel() <= src.untyped_storage().nbytes() // src.element_size()
        super()._copy_now(dst, src.as_strided(src.shape, dense) if in_reach else src)


@device_fault("AC-COPY-004")
class OverlapsCopyForwards(AsyncReferenceDevice):
    """Overlapping copies go from front to back, 8 bytes at a time."""

    def _copy_now(self, dst: torch.Tensor, src: torch.Tensor) -> None:
        overlaps = dst.untyped_storage().data_ptr() == src.untyped_storage().data_ptr()
        if not overlaps or dst.dim() != 1 or dst.shape != src.shape:
            super()._copy_now(dst, src)
            return
        for at in range(0, dst.numel(), 8):
            dst[at : at + 8] = src[at : at + 8].clone()


@device_fault("AC-COPY-005")
class PlainCopiesRunLater(AsyncReferenceDevice):
    """A copy without a stream goes to a hidden one, which computation doesn't wait for."""

    def copy(self, dst: torch.Tensor, src: torch.Tensor, stream: Stream | None = None) -> None:
        if stream is None:
            if not self._streams:
                self.create_stream()
            stream = self._streams[0]
            self.delay(stream, 0.0005)
        super().copy(dst, src, stream)


@device_fault("AC-COPY-006")
class HostSourcesAreReadLate(AsyncReferenceDevice):
    """A queued copy reads a host tensor when its turn has come."""

    def _source(self, src: torch.Tensor) -> torch.Tensor:
        return src


@device_fault("AC-COPY-012")
class PlainSourcesAreReadLate(AsyncReferenceDevice):
    """What a copy without a stream brings from the host waits, unread, until the next copy to the host."""

    def copy(self, dst: torch.Tensor, src: torch.Tensor, stream: Stream | None = None) -> None:
        if stream is None and self._is_on_host(src) and not self._is_on_host(dst):
            self._unread = (*self._unread, (dst, src))
            return
        unread, self._unread = self._unread, ()
        for target, source in unread:
            super().copy(target, source)
        super().copy(dst, src, stream)

    _unread: Sequence[tuple[torch.Tensor, torch.Tensor]] = ()


@device_fault("AC-COPY-007")
class HostTargetsAreLate(AsyncReferenceDevice):
    """A queued copy to a host tensor returns at once."""

    def _is_on_host(self, tensor: torch.Tensor) -> bool:
        return False

    def _source(self, src: torch.Tensor) -> torch.Tensor:
        return src.clone() if super()._is_on_host(src) else src


@device_fault("AC-COPY-010")
class FreedMemoryIsReusedAtOnce(AsyncReferenceDevice):
    """A freed buffer is handed out again while queued work still uses it."""

    def _release_block(self, block: Block) -> None:
        self.memory_of_chip.recycle(block)


@device_fault("AC-COPY-011")
class ReadersAreNotTracked(AsyncReferenceDevice):
    """Only the target of queued work is kept from being reused."""

    def _hold(self, *tensors: torch.Tensor) -> list[Block]:
        return super()._hold(tensors[0])


@device_fault("AC-STREAM-004")
class CopiesOvertake(AsyncReferenceDevice):
    """Copies from the host have an engine of their own, which doesn't wait for the stream."""

    def _submit_copy(self, stream: WorkerStream, run: Callable[[], None], finished: Callable[[], None]) -> None:
        self._copies += 1
        if self._copies % 5 == 2:
            run()
            finished()
        else:
            super()._submit_copy(stream, run, finished)

    _copies = 0


__all__ = [
    "CopiesOvertake",
    "CopyWritesTooMuch",
    "FreedMemoryIsReusedAtOnce",
    "HostSourcesAreReadLate",
    "HostTargetsAreLate",
    "NanIsNormalised",
    "OverlapsCopyForwards",
    "PlainCopiesRunLater",
    "PlainSourcesAreReadLate",
    "ReadersAreNotTracked",
    "StridesAreIgnored",
    "TailIsNotCopied",
]
