"""What a program's calls take of a device: weights read, products, keys and values, activations moved.

Everything derives from the program's shapes and from what its constants are. Knows no speed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import torch

from anychip.graph.ir import ModelGraph, WeightSpec
from anychip.graph.program import weight_uses
from anychip.graph.shapes import width
from anychip_sdk.ops import CATALOGUE, Arg
from anychip_sdk.program import Call, Constant, Program, Value
from anychip_sdk.registry import Resolution, dtype_name
from anychip_sdk.speeds import kernel_name

LOOKED_UP = ("embedding",)  #: ops that read a row of their weight for each token, not all of it
LOGITS_BYTES = 4


class Routed(NamedTuple):
    """How many of a mixture's experts a row is multiplied with."""

    experts: int
    columns: int  #: of each row

    def distinct(self, rows: int) -> float:
        """Experts that so many rows can be expected to reach together; each expert is as likely as any other."""
        return self.experts * (1 - (1 - min(1.0, self.columns / self.experts)) ** rows)


class KernelUse(NamedTuple):
    """Ops that one kernel runs with weights held in one dtype, over as many rows, behind one window."""

    op: str
    kernel: str  #: as `anychip_sdk.speeds.kernel_name` has it
    is_sampled: bool  #: its rows are those whose logits are wanted, not all tokens
    window: int | None
    routed: Routed | None = None  #: of its weights a step reads those of the experts that its rows reach


@dataclass(frozen=True)
class OpWork:
    """What ops take together, whatever the step; for each row of tokens, where it says so."""

    calls: int = 0
    weight_bytes: int = 0
    parameters: int = 0  #: multiplied by each row
    kv_bytes_per_token: int = 0  #: of a decode's context
    scores_per_token: int = 0
    attention_flops_per_pair: int = 0  #: of a query and a key
    moved_bytes_per_row: int = 0
    matrices: int = 0
    matrix_bytes_per_row: int = 0  #: of activations that go into matrices and come out

    def __add__(self, other: OpWork) -> OpWork:
        return OpWork(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))

    def __sub__(self, other: OpWork) -> OpWork:
        return self + other.times(-1)

    def times(self, count: int) -> OpWork:
        return OpWork(*(getattr(self, one.name) * count for one in fields(self)))

    @property
    def by_matrix(self) -> OpWork:
        """Counted by matrix instead of by op: the same, whichever ops share a kernel."""
        return replace(self, calls=self.matrices, moved_bytes_per_row=self.matrix_bytes_per_row)


def work_of(model: ModelGraph, program: Program, dtype: torch.dtype, kv_dtype: torch.dtype) -> dict[KernelUse, OpWork]:
    """What one step's calls take, by the kernels that run them."""
    reader = _Reader(model, program, dtype, kv_dtype)
    found: dict[KernelUse, OpWork] = {}
    for call in program.calls:
        if call.bound is not None:
            use, work = reader.read(call, call.bound)
            found[use] = found.get(use, OpWork()) + work
    return found


def name_of(bound: Resolution, held: torch.dtype) -> str:
    """A bound kernel as speeds are kept by."""
    return kernel_name(bound.key.name, bound.provider, bound.kernel.name, dtype_name(held))


class _Reader:
    def __init__(self, model: ModelGraph, program: Program, dtype: torch.dtype, kv_dtype: torch.dtype) -> None:
        self._model, self._program = model, program
        self._dtype, self._kv_dtype = dtype, kv_dtype
        self._weights = {use.key: use.spec for use in weight_uses(model)}

    def read(self, call: Call, bound: Resolution) -> tuple[KernelUse, OpWork]:
        own = bound.compute_dtype or self._dtype
        specs = list(self._specs(call))
        routed = self._routed(call)
        products = _products(call.op, specs, own) if routed is None else _mixture(routed, specs, own)
        work = replace(products, calls=1, moved_bytes_per_row=self._moved_bytes(call, own))
        window = None
        if CATALOGUE[call.op].error.depth == "context":  # it sums over a context: attention
            window = call.named().get("window")
            work += self._attention(call)
        held = next((one.quantized.part.dtype for one in specs if one.quantized and _is_matrix(one)), own)
        return KernelUse(call.op, name_of(bound, held), call.rows == "logits", window, routed), work

    def _routed(self, call: Call) -> Routed | None:
        """Of the ops on a mixture's experts; None for any other."""
        experts = call.facts.get("experts")
        ids = call.named().get("ids")
        if not isinstance(experts, int) or not isinstance(ids, Value):
            return None
        return Routed(experts, width(self._program.shapes[ids.name]))

    def _specs(self, call: Call) -> Iterator[WeightSpec]:
        for one in call.args:
            if isinstance(one, Constant) and one.key in self._weights:
                yield self._weights[one.key]

    def _attention(self, call: Call) -> OpWork:
        """A query head and a key make a score by a product and a sum for each dimension, and so with the value."""
        heads = call.facts["heads"]
        assert isinstance(heads, int)
        return OpWork(
            kv_bytes_per_token=sum(self._state_bytes(one) for one in call.args),
            scores_per_token=heads,
            attention_flops_per_pair=2 * heads * _pair_dims(call),
        )

    def _state_bytes(self, value: object) -> int:
        """Of a token's entry in a state tensor; nothing of any other value."""
        place = self._model.states.get(value.key) if isinstance(value, Constant) else None
        if place is None:
            return 0
        return self._model.groups[place.group].spec.tensors[place.tensor].nbytes(self._kv_dtype)

    def _moved_bytes(self, call: Call, dtype: torch.dtype) -> int:
        """Of activations that it reads and writes for each row; what goes to a state is written too."""
        op = CATALOGUE[call.op]
        read = sum(self._width(value) for arg, value in zip(op.args, call.args, strict=True) if _is_activation(arg))
        written = sum(
            self._width(Value(name)) * self._program.dtypes[name].itemsize
            for arg, name in zip(op.returns, call.results, strict=True)
            if name is not None and not arg.state
        )
        only_writes = all(result.state for result in op.returns)
        return (2 * read if only_writes else read) * dtype.itemsize + written

    def _width(self, value: object) -> int:
        return width(self._program.shapes[value.name]) if isinstance(value, Value) else 0


def _pair_dims(call: Call) -> int:
    """Of a key and a value: of latents, as decodes read them, a value is the first part of the key."""
    names = ("rank", "rope_dim", "rank") if call.op == "latent_attention" else ("head_dim", "head_dim")
    return sum(int(call.facts[name] or 0) for name in names)


def _products(op: str, specs: list[WeightSpec], dtype: torch.dtype) -> OpWork:
    if op in LOOKED_UP:
        return OpWork()
    matrices = [_matrix(spec) for spec in specs if _is_matrix(spec)]
    return OpWork(
        weight_bytes=sum(spec.elements * spec.itemsize(dtype) for spec in specs),
        parameters=sum(map(math.prod, matrices)),
        matrices=len(matrices),
        matrix_bytes_per_row=sum(map(sum, matrices)) * dtype.itemsize,
    )


def _mixture(routed: Routed, specs: list[WeightSpec], dtype: torch.dtype) -> OpWork:
    """All experts' weights, and what a row is multiplied with: one expert's for each of its columns."""
    matrices = [_matrix(spec) for spec in specs if _is_matrix(spec, dimensions=3)]
    return OpWork(
        weight_bytes=sum(spec.elements * spec.itemsize(dtype) for spec in specs),
        parameters=sum(map(math.prod, matrices)) * routed.columns // routed.experts,
        matrices=len(matrices),
        matrix_bytes_per_row=sum(sum(shape[1:]) for shape in matrices) * dtype.itemsize * routed.columns,
    )


def _is_matrix(spec: WeightSpec, dimensions: int = 2) -> bool:
    if spec.quantized is None:
        return len(spec.shape) == dimensions
    return spec.quantized.part.name == "weight"


def _matrix(spec: WeightSpec) -> tuple[int, ...]:
    """The shape of what each row is multiplied with, whatever it is held in."""
    return spec.shape if spec.quantized is None else spec.quantized.shape


def _is_activation(arg: Arg) -> bool:
    return arg.dtype == "T" and bool(arg.shape) and not arg.weight and not arg.state


__all__ = ["LOGITS_BYTES", "KernelUse", "OpWork", "Routed", "name_of", "work_of"]
