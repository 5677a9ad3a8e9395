"""Turn a call of a catalogue op into a call of a C function: one argument block, reused. Knows layouts, no kernel."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Union

import torch

from anychip_sdk.native import abi
from anychip_sdk.native.library import NativeOp
from anychip_sdk.native.shapes import result_rules
from anychip_sdk.ops.base import Arg, Op
from anychip_sdk.registry import Facts, Prepare
from anychip_sdk.step import Paged, Step, StepLimits

CODES = {getattr(torch, name): code for code, name in enumerate(abi.DTYPES)}

_TENSOR_BYTES = ctypes.sizeof(abi.TensorC)
_SCALAR_BYTES = ctypes.sizeof(abi.ScalarC)
_ARGS_BYTES = ctypes.sizeof(abi.ArgsC)
_POINTER = struct.Struct("=Q")
_INT = struct.Struct("=iiq")
_FLOAT = struct.Struct("=iid")
_TENSOR = struct.Struct(f"=QQiiII{abi.MAX_DIMS}q{abi.MAX_DIMS}q")
_FORMS_KEPT = 1024

Key = Union[tuple[torch.dtype, torch.Size, Union[tuple[int, ...], None]], tuple[int, int], None]


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
    """A kernel as the registry wants it: takes the op's arguments, a StepBlock for the step; returns what the reference
    returns.

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
        self._scalars = tuple((i, arg) for i, arg in enumerate(op.args) if arg.is_plain)
        self._step = op.step_index
        self._is_sized_by_step = any(rule.is_sized_by_step for rule in self._rules)
        self._sized_by = tuple(at for rule in self._rules for at in rule.sized_by)
        self._blocks: list[Block] = []  # as many as ever ran at once; append and pop are atomic
        self._forms: dict[tuple[Key, ...], Form] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = args if len(args) == len(self._op.args) else self._all(args, kwargs)
        values = [given[index] for index in self._tensors]
        key = tuple([(v.dtype, v.shape, v.stride()) if v.__class__ is torch.Tensor else _key(v) for v in values])
        if self._step is not None and self._is_sized_by_step:
            key = (*key, given[self._step].sizes)
        if self._sized_by:
            key = (*key, *[given[at] for at in self._sized_by])
        form = self._forms.get(key) or self._formed(key, given)
        for place in form.copied:
            values[place] = values[place].contiguous()  # lives in `values` until the call is over
        made = [torch.empty(shape, dtype=dtype) for shape, dtype in form.results]
        block = self._blocks.pop() if self._blocks else Block(len(values) + self._new, len(self._scalars))
        block.fill(form, (*values, *made))
        at = block.scalars_at
        for index, arg in self._scalars:
            _put_scalar(block, at, given[index], arg)
            at += _SCALAR_BYTES
        if self._step is not None:
            block.header.step = given[self._step].address
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


class EmbeddingCall(KernelCall):
    """A kernel of `embedding`: the host hands on a step's own embeddings, so that no library has to look for them."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        step, weight = self._all(args, kwargs)
        if step.embeddings is not None:
            return step.embeddings.to(weight.dtype)
        return super().__call__(step, weight)


class StepBlock:
    """An anychip_step_t and what its pointers point to.

    Attributes:
        address: of the struct.
        tokens: of the step.
        logits: how many tokens' logits are wanted.
        sizes: both.
        embeddings: of the step; None where it brings none.
    """

    def __init__(self, step: Step) -> None:
        made = abi.sized(abi.StepC)
        assert isinstance(made, abi.StepC)
        self.tokens, self.logits = self.sizes = step.tokens, len(step.logit_rows)
        self.embeddings = step.embeddings
        made.rows, made.tokens, made.logits = step.rows, self.tokens, self.logits
        made.page_size, made.decode_rows = step.page_size, step.decode_rows
        held = [_as(torch.int64, step.token_ids), _as(torch.int64, step.positions), _as(torch.int64, step.logit_rows)]
        made.token_ids, made.positions, made.logit_rows = (one.data_ptr() for one in held)
        held += [_as(torch.int32, step.query_start), _as(torch.int32, step.context_lens)]
        made.query_start, made.context_lens = (one.data_ptr() for one in held[3:])
        made.query_lens_host = (ctypes.c_int32 * step.rows)(*step.query_lens_host)
        made.context_lens_host = (ctypes.c_int32 * step.rows)(*step.context_lens_host)
        groups = (abi.StepGroupC * len(step.groups))()
        for group, entry in zip(groups, step.groups, strict=True):
            slots = _as(torch.int64, entry.slots)
            group.slots = slots.data_ptr()
            held.append(slots)
            if isinstance(entry, Paged):
                table = _as(torch.int32, entry.page_table)
                group.kind, group.pages_max, group.page_table = abi.STATE_PAGED, table.shape[-1], table.data_ptr()
                held.append(table)
            else:
                group.kind = abi.STATE_SLOT
        made.group_count, made.groups = len(step.groups), groups
        self.address = ctypes.addressof(made)
        self._held = (made, held, groups)


def _step_block(facts: Facts, constants: Mapping[str, Any], limits: StepLimits) -> Callable[[Step], StepBlock]:
    return StepBlock


#: all kernels of a library share one block a step
STEP_BLOCK = Prepare(_step_block)


def _as(dtype: torch.dtype, numbers: torch.Tensor) -> torch.Tensor:
    return numbers.to(dtype).contiguous()


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


def _put_scalar(block: Block, at: int, value: Any, arg: Arg) -> None:
    """A word goes as its place among those that the schema knows."""
    if value is None:
        _INT.pack_into(block.bytes, at, abi.SCALAR_NONE, 0, 0)
    elif arg.choices:
        _INT.pack_into(block.bytes, at, abi.SCALAR_INT, 0, arg.choices.index(value))
    elif arg.dtype == "float":
        _FLOAT.pack_into(block.bytes, at, abi.SCALAR_FLOAT, 0, value)
    else:
        _INT.pack_into(block.bytes, at, abi.SCALAR_INT, 0, value)


__all__ = [
    "CODES",
    "STEP_BLOCK",
    "Block",
    "EmbeddingCall",
    "Form",
    "KernelCall",
    "NativeWeight",
    "StepBlock",
    "tensor_struct",
]
