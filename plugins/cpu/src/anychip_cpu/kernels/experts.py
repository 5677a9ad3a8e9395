"""Mixtures of experts in the native library: packing and calling. Knows its structs and layouts; knows no model."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from anychip_cpu import native
from anychip_cpu.kernels import dense, quantized
from anychip_cpu.kernels.products import TILE
from anychip_sdk.hooks import PreparedWeight
from anychip_sdk.ops import CATALOGUE
from anychip_sdk.registry import KernelFunction

OPS = ("moe_experts", "moe_experts_int4", "moe_experts_int8")
#: dtypes whose weights the library multiplies as they are
DTYPES = (torch.bfloat16, torch.float32)
#: Activation of experts.hpp
ACTIVATIONS = {"silu": 0, "gelu": 1, "swiglu_clamped": 2}
#: ExpertsArgs of experts.hpp
_ARGS = struct.Struct("=4Q" + 2 * "4Qq" + "8q4i")


class PackedExperts(NamedTuple):
    """One weight of every expert, each in the library's layout.

    Attributes:
        slices: int64 [experts, 2]: where an expert's weight lies, and the bits of each number.
        held: what lies there.
        columns: of each expert's weight.
    """

    slices: torch.Tensor
    held: tuple[torch.Tensor, ...]
    columns: int


class Matrices(NamedTuple):
    """What all experts multiply with at one place, prepared; scale and minimum are [experts, tiles, groups, TILE]."""

    weight: PackedExperts
    scale: torch.Tensor | None = None
    minimum: torch.Tensor | None = None
    bias: torch.Tensor | None = None


class Mixture(NamedTuple):
    """All experts of a layer, and what is done between their two products.

    Attributes:
        gate_up: the matrices of gate and up.
        down: those of down.
        activation: one of ACTIVATIONS.
        is_on_input: a column's weight multiplies the expert's input, else its output.
        first: the id of the first expert.
    """

    gate_up: Matrices
    down: Matrices
    activation: str
    is_on_input: bool
    first: int


class Experts:
    """One kernel for each op. A row's result depends on that row alone.

    Args:
        library: the native kernels; None: the kernels can't be called.
    """

    def __init__(self, library: native.Library | None) -> None:
        self._library = library

    def kernel(self, op: str) -> KernelFunction:
        names = [arg.name for arg in CATALOGUE[op].args]

        def run(*args: Any) -> torch.Tensor:
            assert self._library is not None
            given = dict(zip(names, args, strict=True))
            return mixed(self._library, given["x"], given["ids"], given["weights"], mixture(given))

        return run


def mixture(given: Mapping[str, Any]) -> Mixture:
    """Of an op's arguments by name, weights prepared."""

    def matrices(place: str) -> Matrices:
        return Matrices(*(given.get(f"{place}_{part}") for part in ("weight", "scale", "minimum", "bias")))  # type: ignore[arg-type]

    return Mixture(matrices("gate_up"), matrices("down"), given["activation"], given["on_input"], given["first"])


def mixed(
    library: native.Library, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, experts: Mixture
) -> torch.Tensor:
    """What the experts of each row of x [tokens, hidden] make of it."""
    x = x if x.stride(1) == 1 else x.contiguous()
    out = torch.empty(x.shape, dtype=x.dtype)
    if not ids.shape[1]:
        return out.zero_()
    ids, weights = ids.contiguous(), weights.contiguous()
    if library.experts(experts_args(x, ids, weights, experts, out)):
        message = "native experts: no memory for what lies between their products"
        raise MemoryError(message)
    return out


def experts_args(
    x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, experts: Mixture, out: torch.Tensor
) -> bytes:
    """ExpertsArgs; the elements of each row of x lie side by side, int32 ids and float32 weights are contiguous."""
    assert ids.dtype == torch.int32
    assert weights.dtype == torch.float32
    return _ARGS.pack(
        *(one.data_ptr() for one in (x, ids, weights, out)),
        *_addresses(experts.gate_up),
        *_addresses(experts.down),
        *(x.shape[0], ids.shape[1], x.shape[1], experts.down.weight.columns),
        *(len(experts.down.weight.slices), experts.first, x.stride(0), torch.get_num_threads()),
        *(native.DTYPES[x.dtype], ACTIVATIONS[experts.activation], experts.is_on_input, 0),
    )


def _addresses(one: Matrices) -> tuple[int, ...]:
    """ExpertMatrices."""
    others = (0 if tensor is None else tensor.data_ptr() for tensor in (one.scale, one.minimum, one.bias))
    return one.weight.slices.data_ptr(), *others, 0 if one.scale is None else one.scale.shape[2]


def prepare(name: str, tensor: torch.Tensor, op: str) -> PreparedWeight:
    """The weights, scales or minimums [experts, rows, ...] or the biases [experts, rows] of one place.

    The rows of gate and up are filled up to whole tiles each, so that a tile of one has its counterpart in the other.
    """
    halves = 2 if "gate_up" in name.rpartition(".")[2] else 1
    if tensor.dim() == 2:
        bias = _filled(tensor.float().unsqueeze(-1), halves).squeeze(-1)
        return PreparedWeight(bias, bias.nbytes, "tiled")
    if op != "moe_experts" and tensor.is_floating_point():
        filled = _filled(tensor, halves)
        tiles = filled.view(len(tensor), -1, TILE, tensor.shape[2]).transpose(2, 3).contiguous()
        return PreparedWeight(tiles, tiles.nbytes, "tiled", join=_joined_tiles)
    made = [_packed(_filled(one.unsqueeze(0), halves)[0]) for one in tensor]
    slices = torch.tensor([[one.value.tensor.data_ptr(), one.value.bits] for one in made], dtype=torch.int64)
    packed = PackedExperts(slices.view(-1, 2), tuple(one.value.tensor for one in made), _columns(tensor))
    layout = made[0].layout if made else "tiled"
    return PreparedWeight(packed, sum(one.nbytes for one in made) + slices.nbytes, layout, join=_joined)


def _joined(stacks: Sequence[PreparedWeight]) -> PreparedWeight:
    packed: list[PackedExperts] = [stack.value for stack in stacks]
    slices = torch.cat([one.slices for one in packed])
    held = tuple(tensor for one in packed for tensor in one.held)
    whole = PackedExperts(slices, held, packed[0].columns)
    return PreparedWeight(whole, sum(stack.nbytes for stack in stacks), stacks[0].layout)


def _joined_tiles(stacks: Sequence[PreparedWeight]) -> PreparedWeight:
    tiles = torch.cat([stack.value for stack in stacks])
    return PreparedWeight(tiles, tiles.nbytes, stacks[0].layout)


def _columns(weight: torch.Tensor) -> int:
    """Of int4 weights a byte holds two."""
    return weight.shape[2] * (2 if weight.dtype == torch.uint8 else 1)


def _filled(tensor: torch.Tensor, halves: int) -> torch.Tensor:
    """[experts, rows, columns] with rows of zeros behind each half, up to whole tiles."""
    rows = tensor.shape[1] // halves
    fill = -rows % TILE
    if not fill:
        return tensor
    parts = functional.pad(tensor.unflatten(1, (halves, rows)), (0, 0, 0, fill))
    return parts.flatten(1, 2)


def _packed(weight: torch.Tensor) -> PreparedWeight:
    """One expert's weight [rows, columns]."""
    if weight.dtype == dense.DTYPE:
        return dense.compact(weight) or dense.plain(weight)
    return dense.single(weight) if weight.dtype == torch.float32 else quantized.prepare(weight)


__all__ = [
    "ACTIVATIONS",
    "DTYPES",
    "OPS",
    "Experts",
    "Matrices",
    "Mixture",
    "PackedExperts",
    "experts_args",
    "mixed",
    "mixture",
    "prepare",
]
