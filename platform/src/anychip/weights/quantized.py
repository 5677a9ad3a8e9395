"""Turn GGUF's block formats into float32, whole rows at a time. Knows block layouts; knows no file and no names."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


class BlockFormat(NamedTuple):
    """`values` numbers are stored in `nbytes` bytes; `dtype` is what reading gives."""

    name: str
    values: int
    nbytes: int
    dtype: torch.dtype


# By GGUF's type number. Blocks lie along the last dimension, little endian.
FORMATS: dict[int, BlockFormat] = {
    0: BlockFormat("F32", 1, 4, torch.float32),
    1: BlockFormat("F16", 1, 2, torch.float16),
    2: BlockFormat("Q4_0", 32, 18, torch.float32),
    3: BlockFormat("Q4_1", 32, 20, torch.float32),
    8: BlockFormat("Q8_0", 32, 34, torch.float32),
    30: BlockFormat("BF16", 1, 2, torch.bfloat16),
}

# Named in error messages only.
UNSUPPORTED_NAMES: dict[int, str] = {
    6: "Q5_0", 7: "Q5_1", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K",
    16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S",
    23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0",
    39: "MXFP4",
}  # fmt: skip


def _halves(blocks: Bytes, first: int) -> Floats:
    """The float16 at byte `first` of each block, as [blocks, 1]."""
    return np.ascontiguousarray(blocks[:, first : first + 2]).view("<f2").astype(np.float32)


def _nibbles(blocks: Bytes, first: int) -> Floats:
    """16 bytes hold 32 values: the low halves are values 0..15, the high halves 16..31."""
    out = np.empty((len(blocks), 32), dtype=np.float32)
    packed = blocks[:, first : first + 16]
    out[:, :16] = packed & 0x0F
    out[:, 16:] = packed >> 4
    return out


def _q4_0(blocks: Bytes) -> Floats:
    out = _nibbles(blocks, 2)
    out -= 8.0
    out *= _halves(blocks, 0)
    return out


def _q4_1(blocks: Bytes) -> Floats:
    out = _nibbles(blocks, 4)
    out *= _halves(blocks, 0)
    out += _halves(blocks, 2)
    return out


def _q8_0(blocks: Bytes) -> Floats:
    out = blocks[:, 2:].view(np.int8).astype(np.float32)
    out *= _halves(blocks, 0)
    return out


_DECODERS: dict[str, Callable[[Bytes], Floats]] = {"Q4_0": _q4_0, "Q4_1": _q4_1, "Q8_0": _q8_0}


def decode_rows(rows: Bytes, block_format: BlockFormat) -> torch.Tensor:
    """Decode raw rows, [rows, bytes per row], into [rows, columns]; the result owns its memory."""
    columns = rows.shape[1] // block_format.nbytes * block_format.values
    decoder = _DECODERS.get(block_format.name)
    if decoder is None:
        flat = np.array(rows, order="C", copy=True).reshape(-1)
        return torch.from_numpy(flat).view(block_format.dtype).reshape(len(rows), columns)
    blocks = np.ascontiguousarray(rows).reshape(-1, block_format.nbytes)
    return torch.from_numpy(decoder(blocks).reshape(len(rows), columns))


def halves(blocks: torch.Tensor, first: int) -> torch.Tensor:
    """The float16 at byte `first` of each block [rows, blocks, bytes], as [rows, blocks]."""
    return blocks[..., first : first + 2].contiguous().view(torch.float16).squeeze(-1)


def supported_names() -> str:
    return ", ".join(block_format.name for block_format in FORMATS.values())


__all__ = ["FORMATS", "UNSUPPORTED_NAMES", "BlockFormat", "Bytes", "decode_rows", "halves", "supported_names"]
