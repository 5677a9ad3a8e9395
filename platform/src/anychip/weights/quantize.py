"""Turn rows of numbers, or a GGUF's own blocks, into integers and scales. Knows schemes; knows no file."""

from __future__ import annotations

import torch

from anychip.weights.quantized import BlockFormat, Bytes, halves
from anychip.weights.schemes import Scheme
from anychip_sdk.ops.quantized import dequantized_int4, dequantized_int8, packed

Parts = dict[str, torch.Tensor]  #: by the names of the op's arguments


def quantize(values: torch.Tensor, scheme: Scheme) -> Parts:
    """Float32 rows in the scheme's integers, rounded to the nearest."""
    groups: torch.Tensor = values.unflatten(-1, (-1, scheme.group or values.shape[-1]))
    if scheme.bits == 8:
        scale = groups.abs().amax(dim=-1) / 127
        levels = _levels(groups, scale).clamp_(-127, 127)
        return {"weight": levels.flatten(-2).to(torch.int8), "scale": scale}
    least = groups.amin(dim=-1).half()
    scale = ((groups.amax(dim=-1) - least) / 15).half()
    levels = _levels(groups - least.float().unsqueeze(-1), scale.float()).clamp_(0, 15)
    return {"weight": packed(levels.flatten(-2).to(torch.uint8)), "scale": scale, "minimum": least}


def _levels(groups: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    step = scale.unsqueeze(-1)
    return (groups / torch.where(step == 0, 1.0, step)).round_()


def dequantized(parts: Parts, scheme: Scheme) -> torch.Tensor:
    """What the integers stand for, float32."""
    scale = parts["scale"].float()
    if scheme.bits == 8:
        return dequantized_int8(parts["weight"], scale)
    minimum = parts.get("minimum")
    return dequantized_int4(parts["weight"], scale, None if minimum is None else minimum.float())


def stored_parts(rows: Bytes, block: BlockFormat, scheme: Scheme) -> Parts:
    """A file's raw rows, [rows, bytes per row], as the scheme's parts, bit for bit."""
    blocks = torch.from_numpy(rows).view(len(rows), -1, block.nbytes)
    first = halves(blocks, 0)
    if block.name == "Q8_0":
        return {"weight": blocks[..., 2:].flatten(1).view(torch.int8), "scale": first.float()}
    at = 4 if block.name == "Q4_1" else 2
    parts = {"weight": blocks[..., at:].flatten(1), "scale": first}
    if scheme.has_minimum:  # rows of both kinds may be joined: level 8 is zero where there is none
        parts["minimum"] = halves(blocks, 2) if block.name == "Q4_1" else first * -8
    return parts


__all__ = ["Parts", "dequantized", "quantize", "stored_parts"]
