"""Which experts a token goes to, in the native library. Knows its struct; knows no expert."""

from __future__ import annotations

import struct
from typing import NamedTuple

import torch
from torch.nn import functional

from anychip_cpu import native
from anychip_cpu.kernels import dense
from anychip_cpu.kernels.products import TILE, Packed, Weights, multiply
from anychip_sdk.hooks import PreparedWeight

OP = "router_topk"
EXPERTS_MAX = 1024
#: Score, GroupScore and Renormalise of routing.hpp
SCORES = {"softmax": 0, "sigmoid": 1, "logits": 2}
GROUP_SCORES = {"max": 0, "sum2": 1}
RENORMALISE = {"none": 0, "sum": 1, "max": 2, "softmax": 3}
#: RouteArgs of routing.hpp
_ARGS = struct.Struct("=5Q7q2d4i")


class Way(NamedTuple):
    """How experts are chosen; the plain arguments of the op."""

    top_k: int
    score: str
    groups: int
    top_groups: int
    group_score: str
    renormalise: str
    floor: float
    factor: float
    shared: int = 0


class Choice(NamedTuple):
    """Where a router's results go: int32 and float32 [tokens, top_k + shared], contiguous."""

    ids: torch.Tensor
    weights: torch.Tensor


class Router:
    """The op's kernel. A row's choice depends on that row alone.

    Args:
        library: the native kernels; None: it can't be called.
    """

    def __init__(self, library: native.Library | None) -> None:
        self._library = library

    def __call__(
        self,
        x: torch.Tensor,
        weight: Packed,
        logit_bias: torch.Tensor | None,
        selection_bias: torch.Tensor | None,
        top_k: int,
        score: str,
        groups: int,
        top_groups: int,
        group_score: str,
        renormalise: str,
        floor: float,
        factor: float,
        shared_gate: Packed | None = None,
        shared: int = 0,
    ) -> Choice:
        library = self._library
        assert library is not None
        logits = multiply(library, x, Weights(weight, bias=logit_bias), torch.float32)
        shares = None if shared_gate is None else multiply(library, x, Weights(shared_gate), torch.float32)
        shape = len(x), top_k + shared
        made = Choice(torch.empty(shape, dtype=torch.int32), torch.empty(shape, dtype=torch.float32))
        way = Way(top_k, score, groups, top_groups, group_score, renormalise, floor, factor, shared)
        library.route(route_args(logits, selection_bias, shares, way, made))
        return made


def route_args(
    logits: torch.Tensor, selection_bias: torch.Tensor | None, shares: torch.Tensor | None, way: Way, to: Choice
) -> bytes:
    """RouteArgs for contiguous tensors."""
    optional = (0 if one is None else one.data_ptr() for one in (selection_bias, shares))
    return _ARGS.pack(
        logits.data_ptr(),
        *optional,
        *(to.ids.data_ptr(), to.weights.data_ptr()),
        *(*logits.shape, way.top_k, way.groups, way.top_groups, way.shared, torch.get_num_threads()),
        *(way.floor, way.factor),
        *(SCORES[way.score], GROUP_SCORES[way.group_score], RENORMALISE[way.renormalise], 0),
    )


def prepare(tensor: torch.Tensor) -> PreparedWeight:
    """The weight [experts, hidden], or a bias of either kind [experts], as the library reads them."""
    if tensor.dim() == 1:
        bias = functional.pad(tensor.float(), (0, -len(tensor) % TILE))
        return PreparedWeight(bias, bias.nbytes, "tiled")
    if tensor.dtype != dense.DTYPE:
        return dense.single(tensor)
    return dense.compact(tensor) or dense.plain(tensor)


__all__ = ["EXPERTS_MAX", "OP", "Choice", "Router", "Way", "prepare", "route_args"]
