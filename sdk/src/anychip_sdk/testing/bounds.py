"""How far each element of a result may be from the float64 reference. Knows each op's sums; knows no kernel.

A sum of n products is off by at most about sqrt(n) * u times the sum of the products' sizes (Higham and Mary, 2019),
u being half the accumulator's epsilon. So the bound follows what was summed: a small result of large terms that cancel
may be off by more than a small result of small terms, and a constant bias can't hide behind the largest element.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from anychip_sdk.ops.attention import paged_attention
from anychip_sdk.ops.base import Arg, Op
from anychip_sdk.ops.norm import normalise
from anychip_sdk.ops.quantized import BLOCK, dequantized_int4, dequantized_int8, rounded
from anychip_sdk.ops.sampling import apply_penalties
from anychip_sdk.step import Step

F32_EPS = torch.finfo(torch.float32).eps


class Numerics(NamedTuple):
    """What a kernel claims of its arithmetic."""

    accumulator: torch.dtype | None = None  #: that sums are kept in; None: float32, or the op's own if that is wider
    keeps_subnormals: bool = True  #: False: they may become zero


class Terms(NamedTuple):
    """The sizes of what an element is made of."""

    sums: torch.Tensor  #: times u * the op's factor: summed in the accumulator
    rounded: torch.Tensor | None = None  #: times the dtype's epsilon: rounded to the dtype on the way
    stepped: torch.Tensor | None = None  #: as it is: activations near a tie may have been rounded to the other side


def error_bounds(
    op: Op,
    args: Sequence[Any],
    wanted: Sequence[torch.Tensor],
    dtype: torch.dtype,
    numerics: Numerics = Numerics(),
) -> tuple[torch.Tensor, ...]:
    """One float64 bound for each element of each result.

    Args:
        op: the catalogue's op.
        args: its arguments, floating ones as float64.
        wanted: the reference's results on them.
        dtype: the op's own, "T".
        numerics: what the kernel claims.
    """
    make = _TERMS.get(op.name)
    terms: Sequence[Terms | None] = make(*args) if make is not None else [None] * len(wanted)
    bounds = []
    for arg, want, term in zip(op.returns, wanted, terms, strict=True):
        rounding = dtype if has_own_dtype(op) else result_dtype(op, arg, dtype)
        if op.error.kind == "exact" or not rounding.is_floating_point:
            bounds.append(torch.zeros(want.shape, dtype=torch.float64))
        else:
            bounds.append(_bound(op, args, want.double(), term, rounding, numerics))
    return tuple(bounds)


def _bound(
    op: Op, args: Sequence[Any], want: torch.Tensor, terms: Terms | None, dtype: torch.dtype, numerics: Numerics
) -> torch.Tensor:
    info = torch.finfo(dtype)
    u = torch.finfo(numerics.accumulator).eps / 2 if numerics.accumulator else min(F32_EPS, info.eps) / 2
    factor = op.error.ulps
    # below the smallest subnormal nothing can be told apart; a device that flushes has no numbers below the normal ones
    least = factor * info.smallest_normal * (info.eps if numerics.keeps_subnormals else 1.0)
    size = want.abs()
    if op.error.kind == "rounded":
        return size * info.eps + least
    if op.error.kind == "ulps":
        summed = want.shape[-1] if op.name.endswith("norm") else 1
        return (factor * info.eps + math.sqrt(summed) * u) * size + least
    if terms is None:  # blocks of several ops: by the size of the whole result
        finite = want[want.isfinite()]
        scale = finite.square().mean().sqrt().item() if finite.numel() else 0.0
        share = factor * (2 * u * math.sqrt(max(1, depth_of(op, args))) + 2 * info.eps)
        return 2 * info.eps * size + share * scale + least
    bound: torch.Tensor = factor * u * terms.sums + 2 * info.eps * size + least
    bound = bound if terms.rounded is None else bound + info.eps * terms.rounded
    return bound if terms.stepped is None else bound + terms.stepped


def _products(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> list[Terms]:
    sums = torch.nn.functional.linear(x.abs(), weight.abs(), None if bias is None else bias.abs())
    return [Terms(sums * max(1, x.shape[-1]) ** 0.5)]


def _rounded_products(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, block: int = BLOCK
) -> list[Terms]:
    """Whole numbers sum without error; only what is so near a tie that float32 can't tell may be a step off."""
    levels, scale = rounded(x, block)
    [products] = _products(levels * scale, weight, bias)
    ratio = torch.where(scale == 0, 0.0, x / scale).abs()
    steps = torch.where((ratio % 1 - 0.5).abs() <= 4 * F32_EPS * ratio, scale, 0.0)
    return [products._replace(stepped=torch.nn.functional.linear(steps, weight.abs()))]


def _linear_int8(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None = None, block: int = BLOCK
) -> list[Terms]:
    return _rounded_products(x, dequantized_int8(weight, scale), bias, block)


def _linear_int4(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    minimum: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> list[Terms]:
    """A level's product and the minimum's may cancel, so the sizes are of both."""
    [terms] = _rounded_products(x, dequantized_int4(weight, scale, minimum), bias)
    if minimum is None:
        return [terms]
    sizes = dequantized_int4(weight, scale.abs(), minimum.abs())
    return [terms._replace(sums=_products(x, sizes, bias)[0].sums)]


def _attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    step: Step,
    scale: float,
    window: int | None = None,
    group: int = 0,
) -> list[Terms]:
    """A score's error becomes a weight's relative error; weights may be rounded to the dtype before they meet v."""
    mixed = paged_attention.reference(q, k, v.abs(), step, scale, window, group)
    longest = k.nan_to_num(0.0, 0.0, 0.0).square().sum(-1).sqrt().max() if k.numel() else torch.tensor(0.0)
    scores = q.square().sum(-1, keepdim=True).sqrt() * longest * abs(scale)
    context = max(step.context_lens_host, default=1)
    return [Terms((context**0.5 + 2 * q.shape[-1] ** 0.5 * scores) * mixed, mixed)]


def _pairs(x: torch.Tensor, rotary_dim: int) -> torch.Tensor:
    """|x[i]| + |x[i + rotary_dim/2]| for both of a pair."""
    first, second, rest = x.abs().split((rotary_dim // 2, rotary_dim // 2, x.shape[-1] - rotary_dim), dim=-1)
    return torch.cat((first + second, first + second, rest), dim=-1)


def _rope(q: torch.Tensor, k: torch.Tensor, step: Step, table: torch.Tensor) -> list[Terms]:
    return [Terms(_pairs(x, table.shape[-1])) for x in (q, k)]


def _qk_norm_rope(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    eps: float,
    step: Step,
    table: torch.Tensor,
) -> list[Terms]:
    """The normalised heads are rounded twice before they are turned."""
    sizes = [_pairs(normalise(x, weight, eps), table.shape[-1]) for x, weight in ((q, q_weight), (k, k_weight))]
    return [Terms(size * size.shape[-1] ** 0.5, 2 * size) for size in sizes]


def _penalties(
    logits: torch.Tensor,
    rows: torch.Tensor,
    prompt_ids: torch.Tensor,
    output_ids: torch.Tensor,
    repetition: torch.Tensor,
    presence: torch.Tensor,
    frequency: torch.Tensor,
) -> list[Terms]:
    largest = torch.minimum(repetition, 1 / repetition)
    taken = (largest, -presence.abs(), -frequency.abs())
    return [Terms(apply_penalties.reference(logits.abs(), rows, prompt_ids, output_ids, *taken))]


_TERMS: Mapping[str, Callable[..., Sequence[Terms | None]]] = {
    "apply_penalties": _penalties,
    "gelu": lambda x: [Terms(x.abs())],
    "gelu_mul": lambda gate, up: [Terms(gate.abs() * up.abs())],
    "linear": _products,
    "linear_int4": _linear_int4,
    "linear_int8": _linear_int8,
    "lm_head": _products,
    "lm_head_int8": lambda x, weight, scale, block=BLOCK: _linear_int8(x, weight, scale, None, block),
    "paged_attention": _attention,
    "qk_norm_rope": _qk_norm_rope,
    "rope": _rope,
}


def has_own_dtype(op: Op) -> bool:
    """False for ops on ids and float32 logits, which are the same for a model of any dtype."""
    return any(arg.dtype == "T" and arg.shape for arg in op.args)


def result_dtype(op: Op, arg: Arg, dtype: torch.dtype) -> torch.dtype:
    """What a result of the schema is for an op of `dtype`."""
    if arg.dtype == "T":
        return dtype
    fixed: torch.dtype = getattr(torch, arg.dtype)
    # what is float32 at least, such as logits, is float64 where the op is
    return dtype if fixed == torch.float32 and dtype == torch.float64 and has_own_dtype(op) else fixed


def depth_of(op: Op, args: Sequence[Any]) -> int:
    """The size of the dimension that the op sums over."""
    if op.error.depth is None:
        return 1
    for value in args:
        if op.error.depth == "context" and isinstance(value, Step):
            return max(value.context_lens_host, default=1)
    for arg, value in zip(op.args, args, strict=True):
        if isinstance(value, torch.Tensor) and op.error.depth in arg.shape:
            return value.shape[arg.shape.index(op.error.depth) - len(arg.shape)]
    message = f"{op.name}: its error model sums over '{op.error.depth}', which no argument has"
    raise AssertionError(message)


__all__ = ["Numerics", "Terms", "depth_of", "error_bounds", "has_own_dtype", "result_dtype"]
