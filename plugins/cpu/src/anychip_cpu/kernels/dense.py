"""Products with bfloat16 weights in the native library: packing and calling. Knows its layout; knows no layer."""

from __future__ import annotations

import struct
from functools import lru_cache

import torch
from torch.nn import functional

from anychip_cpu import host, native
from anychip_cpu.kernels import packed as onednn
from anychip_cpu.kernels.products import TILE, WEIGHTS, Packed, Weights, multiply
from anychip_sdk.hooks import PreparedWeight

DTYPE = torch.bfloat16
PLAIN_BITS, COMPACT_BITS, SINGLE_BITS = 16, 12, 32
#: columns that compact weights are packed by
GROUP = 4
#: CompactArgs of compact.hpp
_ARGS = struct.Struct("=3Q4q")
#: CompactTile of compact.hpp
_HEAD_BYTES = 64
#: of the plain bytes; where compact ones are more, they aren't worth unpacking
_WORTH = 0.9


class Dense:
    """Products with weights of `prepare`, for bfloat16 activations.

    Args:
        library: the native kernels; None: the methods can't be called.
    """

    def __init__(self, library: native.Library | None) -> None:
        self._library = library

    def linear(self, x: torch.Tensor, weight: Packed, bias: torch.Tensor | None = None) -> torch.Tensor:
        assert self._library is not None
        return multiply(self._library, x, Weights(weight, bias=bias), x.dtype)

    def lm_head(self, x: torch.Tensor, weight: Packed) -> torch.Tensor:
        """Logits in float32, without a rounding between."""
        assert self._library is not None
        return multiply(self._library, x, Weights(weight), torch.float32)


def prepare(name: str, tensor: torch.Tensor) -> PreparedWeight | None:
    """A matrix [out, in] in tiles, compact if that saves memory, a bias in float32; None leaves norms as they are."""
    if tensor.dim() == 2:
        return compact(tensor) or plain(tensor)
    if not name.endswith("bias"):
        return None
    bias = functional.pad(tensor.float(), (0, -tensor.shape[0] % TILE))
    return PreparedWeight(bias, bias.nbytes, "tiled")


def compact(tensor: torch.Tensor) -> PreparedWeight | None:
    """A matrix in about 12 bits each number, without loss; None: it can't be, or would hardly be smaller."""
    library = native.library()
    outputs, columns = tensor.shape
    if isinstance(library, native.Absent) or columns % GROUP:
        return None
    tensor = tensor if tensor.stride(1) == 1 else tensor.contiguous()
    tiles = -(-outputs // TILE)
    heads = torch.zeros(tiles * _HEAD_BYTES, dtype=torch.uint8)
    sizes = outputs, columns, tensor.stride(0), torch.get_num_threads()
    nbytes = library.plan_compact(_ARGS.pack(tensor.data_ptr(), heads.data_ptr(), 0, *sizes))
    if nbytes > _WORTH * tiles * TILE * columns * DTYPE.itemsize:
        return None
    packed = WEIGHTS.take(nbytes)
    library.pack_compact(_ARGS.pack(tensor.data_ptr(), heads.data_ptr(), packed.data_ptr(), *sizes))
    return PreparedWeight(Packed(packed, outputs, COMPACT_BITS), nbytes, "compact")


def plain(tensor: torch.Tensor) -> PreparedWeight:
    """A matrix as it is, in tiles."""
    outputs = tensor.shape[0]
    fill = -outputs % TILE
    odd = tensor.shape[1] % 2
    tensor = functional.pad(tensor, (0, odd, 0, fill)) if fill or odd else tensor.contiguous()
    if tensor.storage_offset() % 2:
        tensor = tensor.clone()  # pairs can't begin within one
    pairs = tensor.view(torch.int32)
    source = pairs.view(-1, TILE, pairs.shape[1]).transpose(1, 2)
    packed = WEIGHTS.take(tensor.nbytes).view(torch.int32).view(source.shape)
    packed.copy_(source)
    return PreparedWeight(Packed(packed, outputs, PLAIN_BITS), packed.nbytes, "tiled")


def single(tensor: torch.Tensor) -> PreparedWeight:
    """A matrix in float32, in tiles; without a rounding, whatever dtype it has."""
    outputs, columns = tensor.shape
    source = functional.pad(tensor, (0, 0, 0, -outputs % TILE)).view(-1, TILE, columns).transpose(1, 2)
    packed = WEIGHTS.take(4 * source.numel()).view(torch.float32).view(source.shape)
    packed.copy_(source)
    return PreparedWeight(Packed(packed, outputs, SINGLE_BITS), packed.nbytes, "tiled")


@lru_cache(maxsize=1)
def lack() -> str | None:
    """What these kernels would need to be the best for bfloat16 here; None: nothing, and `prepare` is for them."""
    library = native.library()
    if isinstance(library, native.Absent):
        return f"native kernels, which are {library}"
    if DTYPE not in onednn.usable_dtypes():
        return None
    if "amx_bf16" in host.instruction_sets():
        return "a processor without AMX, on which oneDNN is faster"
    if library.kernels != "avx512_bf16":
        return "AVX-512 BF16, without which oneDNN is faster"
    return None if library.is_parallel else "an OpenMP runtime"


__all__ = ["DTYPE", "Dense", "compact", "lack", "plain", "prepare", "single"]
