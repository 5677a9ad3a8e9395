"""Turn a call of a catalogue op into a call of a C function: one argument block, reused. Knows layouts, no kernel."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Union

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
_TENSOR = struct.Struct(f"=QQiiII{abi.MAX_DIMS}q{abi.MAX_DIMS}q")
_FORMS_KEPT = 1024

Key = Union[tuple[torch.dtype, torch.Size, Union[tuple[int, ...], None]], None]


@dataclass(frozen=True)
class NativeWeight:
    """A weight in the library's own layout, with the shape and dtype that it had."""

    data: torch.Tensor  #: uint8
    shape: torch.Size
    dtype: torch.dtype

    def data_ptr(self) -> int:
        return self.data.data_ptr()


class Form(NamedTuple):
    """A call but for its pointers and numbers: equal for all calls with arguments of the same dtypes and layouts."""

    tensors: bytes  #: the tensor structs without their data
    copied: tuple[int, ...]  #: which tensor arguments are made contiguous first
    results: tuple[tuple[torch.Size, torch.dtype], ...]  #: of the results that are new


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
        self.scalars_at = _ARGS_BYTES + tensors * _TENSOR_BYTES
        self.header.scalars = self.address + self.scalars_at
        self._form: Form | None = None

    def fill(self, form: Form, values: Sequence[torch.Tensor | NativeWeight | None]) -> None:
        if self._form is not form:
            self.bytes[_ARGS_BYTES : self.scalars_at] = form.tensors
            self._form = form
        at = _ARGS_BYTES
        for value in values:
            if value is not None:
                _POINTER.pack_into(self.bytes, at, value.data_ptr())
            at += _TENSOR_BYTES


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
        self._new = sum(rule.same_as is None for rule in self._rules)
        self._tensors = tuple(i for i, arg in enumerate(op.args) if arg.shape)
        self._mutated = frozenset(i for i, arg in enumerate(op.args) if arg.mutated)
        self._scalars = tuple((i, arg.dtype) for i, arg in enumerate(op.args) if _is_scalar(arg.shape, arg.dtype))
        self._batch = next((i for i, arg in enumerate(op.args) if arg.dtype == "AttentionBatch"), None)
        self._blocks: list[Block] = []  # as many as ever ran at once; append and pop are atomic
        self._forms: dict[tuple[Key, ...], Form] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = args if len(args) == len(self._op.args) else self._all(args, kwargs)
        values = [given[index] for index in self._tensors]
        key = tuple([(v.dtype, v.shape, v.stride()) if v.__class__ is torch.Tensor else _key(v) for v in values])
        form = self._forms.get(key) or self._formed(key, given)
        for place in form.copied:
            values[place] = values[place].contiguous()  # lives in `values` until the call is over
        made = [torch.empty(shape, dtype=dtype) for shape, dtype in form.results]
        block = self._blocks.pop() if self._blocks else Block(len(values) + self._new, len(self._scalars))
        block.fill(form, (*values, *made))
        at = block.scalars_at
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
        if len(self._rules) == 1 and made:
            return made[0]
        fresh = iter(made)
        results = tuple(next(fresh) if rule.same_as is None else given[rule.same_as] for rule in self._rules)
        return results if len(results) > 1 else results[0]

    def _all(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Sequence[Any]:
        bound = self._op.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound.args

    def _formed(self, key: tuple[Key, ...], given: Sequence[Any]) -> Form:
        """What all calls with arguments of these shapes have in common."""
        if len(self._forms) >= _FORMS_KEPT:
            self._forms.clear()
        copied, structs = [], []
        for place, index in enumerate(self._tensors):
            value = given[index]
            if isinstance(value, torch.Tensor) and index not in self._mutated and not self._fits(value):
                copied.append(place)
                value = torch.empty(value.shape, dtype=value.dtype, device="meta")
            structs.append(_struct(value))
        results = []
        for rule in self._rules:
            if rule.same_as is None:
                result = torch.empty(rule.shape(given), dtype=rule.dtype or given[rule.dtype_of].dtype, device="meta")
                structs.append(_struct(result))
                results.append((result.shape, result.dtype))
        self._forms[key] = form = Form(b"".join(structs), tuple(copied), tuple(results))
        return form

    def _fits(self, value: torch.Tensor) -> bool:
        if value.is_contiguous():
            return True
        return self._strided and (value.stride(-1) == 1 or value.shape[-1] == 1)


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
    made = abi.TensorC.from_buffer_copy(_struct(tensor))
    made.data = tensor.data_ptr()
    return made


def _key(value: Any) -> Key:
    """What a form depends on, of anything but a plain tensor."""
    if value is None:
        return None
    return value.dtype, value.shape, None if isinstance(value, NativeWeight) else value.stride()


def _struct(value: torch.Tensor | NativeWeight | None) -> bytes:
    """A tensor struct without its data."""
    if value is None:
        return _TENSOR.pack(0, 0, 0, -1, 0, 0, *(0,) * (2 * abi.MAX_DIMS))
    shape, code = value.shape, CODES.get(value.dtype)
    if len(shape) > abi.MAX_DIMS or code is None:
        message = f"a tensor of {value.dtype} with {len(shape)} dimensions can't be handed to a native op"
        raise ValueError(message)
    padding = (0,) * (abi.MAX_DIMS - len(shape))
    prepared = isinstance(value, NativeWeight)
    strides = (0,) * len(shape) if isinstance(value, NativeWeight) else value.stride()
    flags = abi.PREPARED if prepared else 0
    return _TENSOR.pack(0, 0, code, len(shape), flags, 0, *shape, *padding, *strides, *padding)


def _put_scalar(block: Block, at: int, value: Any, kind: str) -> None:
    if value is None:
        _INT.pack_into(block.bytes, at, abi.SCALAR_NONE, 0, 0)
    elif kind == "float":
        _FLOAT.pack_into(block.bytes, at, abi.SCALAR_FLOAT, 0, value)
    else:
        _INT.pack_into(block.bytes, at, abi.SCALAR_INT, 0, value)


def _is_scalar(shape: str, dtype: str) -> bool:
    return not shape and dtype != "AttentionBatch"


__all__ = ["CODES", "BatchBlock", "Block", "Form", "KernelCall", "NativeWeight", "batch_struct", "tensor_struct"]
