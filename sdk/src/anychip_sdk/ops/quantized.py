"""Matrix products with integer weights and activations. Knows levels, scales and their rounding; knows no packing.

A weight is a whole number times a scale that a row, or a group of neighbours within a row, shares. Activations are
rounded to whole numbers on the way in, each block of neighbours by its largest number; products are sums of whole
numbers. One scale for a whole row of activations is cheaper, and all that some chips' products have; but a few features
of most models are so much larger than all others that these drown in it, so that 8 bits have blocks of either size.
"""

from __future__ import annotations

import torch

from anychip_sdk.ops.base import Arg, accumulated, accurate, op
from anychip_sdk.ops.cases import Args, Case
from anychip_sdk.ops.checks import Checks, Terms, plant_in_first_rows
from anychip_sdk.ops.linear import product_terms

#: values of a row that lie in 16 bytes: byte j holds value j in its lower half and value j + 16 in its upper one
PACKED = 32
BLOCK = 32  #: activations of a row that are rounded together; the last block may be shorter
WHOLE_ROW = 0  #: as a block: all activations of a row are rounded together
BLOCKS = (BLOCK, WHOLE_ROW)  #: the more accurate first
LEVELS = 127.0  #: the largest number of a block becomes this or its negative
LEAST = 2.0**-100  #: a block without a larger number counts as zero

X = Arg(
    "x", ("...", "in"), doc="of a block of neighbours each is rounded to a multiple of the largest / 127, ties to even"
)
WEIGHT = Arg("weight", ("out", "in"), "int8", weight=True)
SCALE = Arg("scale", ("out", "groups"), "float32", weight=True, doc="each for in / groups neighbours of a row")
BIAS = Arg("bias", ("out",), optional=True, weight=True)
ROUNDING = Arg("block", dtype="int", doc="neighbours of x that are rounded together: 32, or 0 for the whole row")


def rounded(x: torch.Tensor, block: int = BLOCK) -> tuple[torch.Tensor, torch.Tensor]:
    """Whole numbers of -127 .. 127 and each one's scale, in the dtype that references compute in.

    A block with a number that is none, or infinite, is all not a number.
    """
    wide = x.to(accurate(x.dtype))
    size = block or x.shape[-1]
    blocks: torch.Tensor = torch.nn.functional.pad(wide, (0, -x.shape[-1] % size)).unflatten(-1, (-1, size))
    largest = blocks.abs().amax(dim=-1, keepdim=True)
    scale = torch.where(largest < LEAST, torch.zeros_like(largest), largest / LEVELS).expand_as(blocks)
    scale = scale.flatten(-2)[..., : x.shape[-1]]
    return torch.where(scale == 0, torch.zeros_like(wide), wide / scale).round(), scale


def dequantized_int8(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """What an int8 weight stands for, in the scale's dtype."""
    levels: torch.Tensor = weight.to(scale.dtype).unflatten(-1, (scale.shape[-1], -1))
    return (levels * scale.unsqueeze(-1)).flatten(-2)


def dequantized_int4(weight: torch.Tensor, scale: torch.Tensor, minimum: torch.Tensor | None) -> torch.Tensor:
    """What packed int4 weights stand for, in the scale's dtype; without a minimum level 8 is zero."""
    levels: torch.Tensor = unpacked(weight).to(scale.dtype).unflatten(-1, (scale.shape[-1], -1))
    if minimum is None:
        return ((levels - 8) * scale.unsqueeze(-1)).flatten(-2)
    return (levels * scale.unsqueeze(-1) + minimum.unsqueeze(-1)).flatten(-2)


def unpacked(weight: torch.Tensor) -> torch.Tensor:
    """[out, in / 2] packed bytes as [out, in] levels of 0 .. 15."""
    blocks: torch.Tensor = weight.unflatten(-1, (-1, PACKED // 2))
    return torch.cat((blocks & 15, blocks >> 4), dim=-1).flatten(-2)


def packed(levels: torch.Tensor) -> torch.Tensor:
    """[out, in] levels of 0 .. 15, uint8, as [out, in / 2] bytes."""
    blocks: torch.Tensor = levels.unflatten(-1, (-1, 2, PACKED // 2))
    return (blocks[..., 0, :] | blocks[..., 1, :] << 4).flatten(-2)


def _product(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, block: int = BLOCK
) -> torch.Tensor:
    levels, scale = rounded(x, block)
    wide_bias = None if bias is None else bias.to(scale.dtype)
    return torch.nn.functional.linear(levels * scale, weight.to(scale.dtype), wide_bias)


def _rounded_terms(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, block: int = BLOCK
) -> list[Terms]:
    """Whole numbers sum without error; only what is so near a tie that float32 can't tell may be a step off."""
    levels, scale = rounded(x, block)
    [products] = product_terms(levels * scale, weight, bias)
    ratio = torch.where(scale == 0, 0.0, x / scale).abs()
    steps = torch.where((ratio % 1 - 0.5).abs() <= 4 * torch.finfo(torch.float32).eps * ratio, scale, 0.0)
    return [products._replace(stepped=torch.nn.functional.linear(steps, weight.abs()))]


def _int8_terms(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None = None, block: int = BLOCK
) -> list[Terms]:
    return _rounded_terms(x, dequantized_int8(weight, scale), bias, block)


def _int4_terms(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    minimum: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> list[Terms]:
    """A level's product and the minimum's may cancel, so the sizes are of both."""
    [terms] = _rounded_terms(x, dequantized_int4(weight, scale, minimum), bias)
    if minimum is None:
        return [terms]
    sizes = dequantized_int4(weight, scale.abs(), minimum.abs())
    return [terms._replace(sums=product_terms(x, sizes, bias)[0].sums)]


def _lm_head_int8_terms(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, block: int = BLOCK) -> list[Terms]:
    return _int8_terms(x, weight, scale, None, block)


def _int8_weight(case: Case, rows: int, columns: int) -> Args:
    """A weight of whole numbers and its scales, one a row or one for every 32 neighbours."""
    groups = columns // PACKED if columns % PACKED == 0 and case.integers(1, below=2) else 1
    levels = (case.integers(rows, columns, below=255) - 127).to(torch.int8)
    return levels, case.scales(rows, groups, columns, 127, torch.float32)


def _int8_case(case: Case) -> Args:
    x = case.floats(case["tokens"], case["hidden"])
    return x, *_int8_weight(case, case["out"], case["hidden"]), case.vector(case["out"]), case["block"]


def _lm_head_int8_case(case: Case) -> Args:
    x = case.floats(case["rows"], case["hidden"])
    return x, *_int8_weight(case, case["vocab"], case["hidden"]), case["block"]


def _int4_case(case: Case) -> Args:
    """`hidden` rounded up to whole packs of values; a minimum where optional vectors are given."""
    columns = -(-case["hidden"] // PACKED) * PACKED
    groups = columns // (4 * PACKED) if columns % (4 * PACKED) == 0 and case.integers(1, below=2) else columns // PACKED
    scale = case.scales(case["out"], groups, columns, 8, torch.float16)
    return (
        case.floats(case["tokens"], columns),
        case.integers(case["out"], columns // 2, below=256).to(torch.uint8),
        scale,
        -8 * scale * case.uniform(*scale.shape, low=0.5, high=1.5, dtype=torch.float16) if case.bias else None,
        case.vector(case["out"]),
    )


@op(
    X,
    WEIGHT,
    SCALE,
    BIAS,
    ROUNDING,
    returns=Arg("out", ("...", "out")),
    error=accumulated("in"),
    checks=Checks(_int8_case, plant_in_first_rows, _int8_terms),
)
def linear_int8(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None = None, block: int = BLOCK
) -> torch.Tensor:
    """round(x) @ (weight * scale).T + bias with 8-bit weights; a row has one scale or one for every group."""
    return _product(x, dequantized_int8(weight, scale.to(accurate(x.dtype))), bias, block).to(x.dtype)


@op(
    X,
    Arg(
        "weight", ("out", "in / 2"), "uint8", weight=True, doc="of 32 values, 0..15 lie in the lower halves of 16 bytes"
    ),
    Arg("scale", ("out", "groups"), "float16", weight=True, doc="each for in / groups neighbours, 32 or a multiple"),
    Arg("minimum", ("out", "groups"), "float16", optional=True, weight=True, doc="added; None: level 8 is zero"),
    BIAS,
    returns=Arg("out", ("...", "out")),
    error=accumulated("in"),
    checks=Checks(_int4_case, plant_in_first_rows, _int4_terms),
)
def linear_int4(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    minimum: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """round(x) @ (level * scale + minimum).T + bias, or (level - 8) * scale without a minimum.

    `in` is 32 times any; activations are rounded in blocks of 32.
    """
    exact = accurate(x.dtype)
    least = None if minimum is None else minimum.to(exact)
    return _product(x, dequantized_int4(weight, scale.to(exact), least), bias).to(x.dtype)


@op(
    Arg("x", ("rows", "in"), doc=X.doc),
    WEIGHT,
    SCALE,
    ROUNDING,
    returns=Arg("logits", ("rows", "out"), "float32"),
    error=accumulated("in"),
    checks=Checks(_lm_head_int8_case, plant_in_first_rows, _lm_head_int8_terms),
)
def lm_head_int8(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, block: int = BLOCK) -> torch.Tensor:
    """`linear_int8` to float32 (float64 for float64), whatever the model's dtype: what sampling starts from."""
    return _product(x, dequantized_int8(weight, scale.to(accurate(x.dtype))), block=block)


__all__ = [
    "BLOCK",
    "BLOCKS",
    "LEAST",
    "LEVELS",
    "PACKED",
    "ROUNDING",
    "WHOLE_ROW",
    "dequantized_int4",
    "dequantized_int8",
    "linear_int4",
    "linear_int8",
    "lm_head_int8",
    "packed",
    "rounded",
    "unpacked",
]
