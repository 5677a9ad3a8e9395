"""Turn a call of a catalogue op into a call of a C function: one argument block, reused. Knows layouts, no kernel."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from anychip_sdk.native import abi
from anychip_sdk.native.library import NativeOp
from anychip_sdk.native.shapes import result_rules
from anychip_sdk.ops.base import AttentionBatch, Op

CODES = {getattr(torch, name): code for code, name in enumerate(abi.DTYPES)}

_TENSOR_BYTES = ctypes.sizeof(abi.TensorC)
_SCALAR_BYTES = ctypes.sizeof(abi.ScalarC)
_ARGS_BYTES = ctypes.sizeof(abi.ArgsC)
_POINTER = struct.Struct("=Q")
_INT = struct.Struct("=iiq")
_FLOAT = struct.Struct("=iid")
_META = struct.Struct(f"=QiiII{abi.MAX_DIMS}q{abi.MAX_DIMS}q")
_SHAPES_KEPT = 4096

Meta = bytes  #: a tensor struct behind its data pointer


@dataclass(frozen=True)
class NativeWeight:
    """A weight in the library's own layout, with the shape and dtype that it had."""

    data: torch.Tensor  #: uint8
    shape: torch.Size
    dtype: torch.dtype


class Block:
    """The memory of one anychip_args_t with its tensors and scalars."""

    def __init__(self, tensors: int, scalars: int) -> None:
        size = _ARGS_BYTES + tensors * _TENSOR_BYTES + scalars * _SCALAR_BYTES
        self._memory = (ctypes.c_uint64 * (size // 8))()
        self.address = ctypes.addressof(self._memory)
        self.bytes = memoryview(self._memory).cast("B")
        self.header = abi.ArgsC.from_buffer(self._memory)
        self.header.struct_size = _ARGS_BYTES
        self.header.tensor_count, self.header.scalar_count = tensors, scalars
        self.header.tensors = self.address + _ARGS_BYTES
        self.header.scalars = self.address + _ARGS_BYTES + tensors * _TENSOR_BYTES


class KernelCall:
    """A kernel as the registry wants it: takes the op's arguments, returns what the reference returns.

    Args:
        op: the catalogue's op.
        native: the library's entry for it.
        device: the handle of the device that was opened last, None where none is.
        check: raises what a status means.
    """

    def __init__(
        self, op: Op, native: NativeOp, device: Callable[[], int | None], check: Callable[[int, str], None]
    ) -> None:
        self.__name__ = native.kernel
        self._op = op
        self._run = native.run
        self._strided = bool(native.flags & abi.STRIDED_ROWS)
        self._device = device
        self._check = check
        self._rules = result_rules(op)
        self._tensors = tuple((i, arg.mutated) for i, arg in enumerate(op.args) if arg.shape)
        self._scalars = tuple((i, arg.dtype) for i, arg in enumerate(op.args) if _is_scalar(arg.shape, arg.dtype))
        self._batch = next((i for i, arg in enumerate(op.args) if arg.dtype == "AttentionBatch"), None)
        self._new = sum(rule.same_as is None for rule in self._rules)
        self._blocks: list[Block] = []  # as many as ever ran at once; append and pop are atomic
        self._metas: dict[tuple[torch.dtype, torch.Size, tuple[int, ...]], Meta] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = self._all(args, kwargs)
        held: list[Any] = []  # what has to live until the call is over
        block = self._blocks.pop() if self._blocks else Block(len(self._tensors) + self._new, len(self._scalars))
        at = _ARGS_BYTES
        for index, mutated in self._tensors:
            self._put(block, at, given[index], mutated, held)
            at += _TENSOR_BYTES
        results = []
        for rule in self._rules:
            if rule.same_as is not None:
                results.append(given[rule.same_as])
                continue
            result = torch.empty(rule.shape(given), dtype=rule.dtype or given[rule.dtype_of].dtype)
            self._put(block, at, result, True, held)
            at += _TENSOR_BYTES
            results.append(result)
        for index, kind in self._scalars:
            _put_scalar(block, at, given[index], kind)
            at += _SCALAR_BYTES
        if self._batch is not None:
            block.header.batch = batch_struct(given[self._batch]).address
        block.header.device = self._device()
        status = self._run(block.address)
        self._blocks.append(block)
        if status != abi.OK:
            self._check(status, f"op {self._op.name} ({self.__name__})")
        return results[0] if len(results) == 1 else tuple(results)

    def _all(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Sequence[Any]:
        if len(args) == len(self._op.args):
            return args
        bound = self._op.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound.args

    def _put(self, block: Block, at: int, value: Any, as_it_is: bool, held: list[Any]) -> None:
        if value is None:
            block.bytes[at : at + _TENSOR_BYTES] = _ABSENT
            return
        if isinstance(value, NativeWeight):
            meta = _meta(value.dtype, value.shape, (0,) * len(value.shape), abi.PREPARED)
            _POINTER.pack_into(block.bytes, at, value.data.data_ptr())
        else:
            if not as_it_is and not self._fits(value):
                value = value.contiguous()
                held.append(value)
            key = (value.dtype, value.shape, value.stride())
            meta = self._metas.get(key) or self._remembered(key)
            _POINTER.pack_into(block.bytes, at, value.data_ptr())
        block.bytes[at + 8 : at + _TENSOR_BYTES] = meta

    def _fits(self, value: torch.Tensor) -> bool:
        if value.is_contiguous():
            return True
        return self._strided and (value.stride(-1) == 1 or value.shape[-1] == 1)

    def _remembered(self, key: tuple[torch.dtype, torch.Size, tuple[int, ...]]) -> Meta:
        if len(self._metas) >= _SHAPES_KEPT:
            self._metas.clear()
        self._metas[key] = meta = _meta(*key)
        return meta


class BatchBlock:
    """An anychip_batch_t and what its pointers point to."""

    def __init__(self, batch: AttentionBatch) -> None:
        made = abi.sized(abi.BatchC)
        assert isinstance(made, abi.BatchC)
        tensors = {
            "query_start": batch.query_start.to(torch.int32).contiguous(),
            "context_lens": batch.context_lens.to(torch.int32).contiguous(),
            "page_table": batch.page_table.to(torch.int32).contiguous(),
            "slots": batch.slots.to(torch.int64).contiguous(),
        }
        rows = batch.rows
        made.rows, made.tokens, made.page_size = rows, len(batch.slots), batch.page_size
        made.decode_rows, made.pages_max = batch.decode_rows, tensors["page_table"].shape[-1]
        for name, tensor in tensors.items():
            setattr(made, name, tensor.data_ptr())
        made.query_lens_host = (ctypes.c_int32 * rows)(*batch.query_lens_host)
        made.context_lens_host = (ctypes.c_int32 * rows)(*batch.context_lens_host)
        self.address = ctypes.addressof(made)
        self._held = (made, tensors)


def batch_struct(batch: AttentionBatch) -> BatchBlock:
    """The batch for C, made once per step."""
    made: BatchBlock = batch.once("native.batch", lambda: BatchBlock(batch))
    return made


def tensor_struct(tensor: torch.Tensor) -> abi.TensorC:
    """One tensor for C; the caller keeps `tensor` alive."""
    return abi.TensorC.from_buffer_copy(_POINTER.pack(tensor.data_ptr()) + _meta_of(tensor))


def _meta_of(tensor: torch.Tensor) -> Meta:
    return _meta(tensor.dtype, tensor.shape, tensor.stride())


def _meta(dtype: torch.dtype, shape: Sequence[int], strides: Sequence[int], flags: int = 0) -> Meta:
    if len(shape) > abi.MAX_DIMS or dtype not in CODES:
        message = f"a tensor of {dtype} with {len(shape)} dimensions can't be handed to a native op"
        raise ValueError(message)
    padding = (0,) * (abi.MAX_DIMS - len(shape))
    return _META.pack(0, CODES[dtype], len(shape), flags, 0, *shape, *padding, *strides, *padding)


def _put_scalar(block: Block, at: int, value: Any, kind: str) -> None:
    if value is None:
        _INT.pack_into(block.bytes, at, abi.SCALAR_NONE, 0, 0)
    elif kind == "float":
        _FLOAT.pack_into(block.bytes, at, abi.SCALAR_FLOAT, 0, value)
    else:
        _INT.pack_into(block.bytes, at, abi.SCALAR_INT, 0, value)


def _is_scalar(shape: str, dtype: str) -> bool:
    return not shape and dtype != "AttentionBatch"


_NO_DIMS = (0,) * (2 * abi.MAX_DIMS)
_ABSENT = _POINTER.pack(0) + _META.pack(0, 0, -1, 0, 0, *_NO_DIMS)

__all__ = ["CODES", "BatchBlock", "Block", "KernelCall", "NativeWeight", "batch_struct", "tensor_struct"]
