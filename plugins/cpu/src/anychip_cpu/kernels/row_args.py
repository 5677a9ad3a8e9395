"""What the library's kernels on rows are called with. Knows the structs of rows.hpp; knows no op."""

from __future__ import annotations

import struct
from typing import NamedTuple

import torch

from anychip_cpu import native

_NORM = struct.Struct("=5Q5qddq")
_HEADS = struct.Struct("=" + 3 * "3Q6q2i" + "3Q4qd4i")
_GATED = struct.Struct("=3Q5q2id")
SCALE = 3  #: the number of the gate that multiplies by a number
_ARGMAX = struct.Struct("=2Q4q")
_HEAD_PRODUCT = struct.Struct("=4Q12q2i")


def norm(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor | None,
    out: torch.Tensor | None,
    total: torch.Tensor | None,
    eps: float,
    offset: float = 0.0,
) -> bytes:
    """NormArgs for contiguous tensors; without weight and `out` only the sum is made. Weights are added to `offset`."""
    dim = x.shape[-1]
    return _NORM.pack(
        x.data_ptr(),
        _address(residual),
        _address(weight),
        _address(out),
        _address(total),
        x.numel() // dim,
        dim,
        dim,
        dim,
        torch.get_num_threads(),
        eps,
        offset,
        native.DTYPES[x.dtype],
    )


def gated(gate: torch.Tensor, up: torch.Tensor, out: torch.Tensor, kind: int, factor: float = 0.0) -> bytes:
    """GatedArgs for [..., dim] of gate and up whose rows lie evenly; `out` is contiguous, `kind` is a gate's number."""
    dim = gate.shape[-1]
    return _GATED.pack(
        gate.data_ptr(),
        up.data_ptr(),
        out.data_ptr(),
        gate.numel() // dim,
        dim,
        gate.stride(-2) if gate.dim() > 1 else dim,
        up.stride(-2) if up.dim() > 1 else dim,
        torch.get_num_threads(),
        native.DTYPES[gate.dtype],
        kind,
        factor,
    )


def scaled(x: torch.Tensor, out: torch.Tensor, factor: float) -> bytes:
    """GatedArgs that multiply [..., dim], whose rows lie evenly, by a number."""
    return gated(x, x, out, SCALE, factor)


def argmax(logits: torch.Tensor, ids: torch.Tensor) -> bytes:
    """ArgmaxArgs for [rows, vocab]."""
    return _ARGMAX.pack(logits.data_ptr(), ids.data_ptr(), *logits.shape, logits.stride(0), torch.get_num_threads())


class Part(NamedTuple):
    """HeadsPart of rows.hpp."""

    source: int
    target: int
    weight: int
    heads: int
    source_token: int
    source_head: int
    target_page: int
    target_token: int
    target_head: int
    is_turned: int
    is_cached: int


NO_PART = Part(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)


def turned(x: torch.Tensor, out: torch.Tensor, weight: torch.Tensor | None) -> Part:
    """Heads [tokens, heads, head_dim] that are turned, and normalised before where there is a weight."""
    token, head, _ = x.stride()
    out_token, out_head, _ = out.stride()
    return Part(x.data_ptr(), out.data_ptr(), _address(weight), x.shape[1], token, head, 0, out_token, out_head, 1, 0)


def written(x: torch.Tensor, to: torch.Tensor, weight: torch.Tensor | None = None, is_turned: int = 0) -> Part:
    """Heads that go to their slots in a cache."""
    token, head, _ = x.stride()
    page, slot, to_head, _ = to.stride()
    return Part(
        x.data_ptr(), to.data_ptr(), _address(weight), x.shape[1], token, head, page, slot, to_head, is_turned, 1
    )


def heads(
    parts: tuple[Part, Part, Part],
    like: torch.Tensor,
    eps: float,
    positions: torch.Tensor | None,
    table: torch.Tensor | None,
    slots: torch.Tensor | None,
    cached: torch.Tensor | None,
) -> bytes:
    """HeadsArgs.

    Args:
        parts: of queries, keys and values; NO_PART for those that are left out.
        like: any of them, for their number of tokens, head_dim and dtype.
        eps: of the normalisation.
        positions: int64 [tokens].
        table: float32 [positions, rotary_dim].
        slots: int64 [tokens].
        cached: any of the caches.
    """
    places, rotary_dim = (0, 0) if table is None else table.shape
    pages, page_size = (1, 1) if cached is None else cached.shape[:2]
    return _HEADS.pack(
        *parts[0],
        *parts[1],
        *parts[2],
        _address(positions),
        _address(slots),
        _address(table),
        like.shape[0],
        places,
        pages * page_size,
        torch.get_num_threads(),
        eps,
        native.DTYPES[like.dtype],
        like.shape[-1],
        rotary_dim,
        page_size,
    )


def head_product(
    x: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    tail: torch.Tensor | None = None,
    tokens: int | None = None,
) -> bytes:
    """HeadProductArgs.

    Args:
        x: [tokens, heads, in].
        weight: [heads, in, outputs], or its transposed view of [heads, outputs, in], one matrix behind the other.
        out: [tokens, heads, outputs + tail_dim].
        tail: [tokens, heads, tail_dim].
        tokens: None: x's.
    """
    heads, inner, outputs = weight.shape
    return _HEAD_PRODUCT.pack(
        x.data_ptr(),
        weight.data_ptr(),
        _address(tail),
        out.data_ptr(),
        *x.stride()[:2],
        *((0, 0) if tail is None else tail.stride()[:2]),
        *out.stride()[:2],
        len(x) if tokens is None else tokens,
        heads,
        inner,
        outputs,
        0 if tail is None else tail.shape[2],
        torch.get_num_threads(),
        native.DTYPES[x.dtype],
        weight.stride(2) != 1,
    )


def _address(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


__all__ = ["NO_PART", "Part", "argmax", "gated", "head_product", "heads", "norm", "turned", "written"]
