"""Products with bfloat16 weights in the native library: packing and calling. Knows its layout; knows no layer."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch.nn import functional

from anychip_cpu import host, native
from anychip_cpu.kernels import packed as onednn
from anychip_cpu.kernels.products import TILE, WEIGHTS, Packed, Weights, multiply
from anychip_sdk.hooks import PreparedWeight

BITS = 16
DTYPE = torch.bfloat16


class Dense:
    """Products with weights of `prepare`, for bfloat16 activations.

    Args:
        library: the native kernels; None: the methods can't be called.
    """

    def __init__(self, library: native.Library | None) -> None:
        self._library = library

    def linear(self, x: torch.Tensor, weight: Packed, bias: torch.Tensor | None = None) -> torch.Tensor:
        assert self._library is not None
        return multiply(self._library, x, Weights(weight, BITS, bias=bias), x.dtype)

    def lm_head(self, x: torch.Tensor, weight: Packed) -> torch.Tensor:
        """Logits in float32, without a rounding between."""
        assert self._library is not None
        return multiply(self._library, x, Weights(weight, BITS), torch.float32)


def prepare(name: str, tensor: torch.Tensor) -> PreparedWeight | None:
    """A matrix [out, in] in tiles, a bias in float32; None leaves norms as they are."""
    outputs = tensor.shape[0]
    fill = -outputs % TILE
    if tensor.dim() == 1:
        if not name.endswith("bias"):
            return None
        bias = functional.pad(tensor.float(), (0, fill))
        return PreparedWeight(bias, bias.nbytes, "tiled")
    odd = tensor.shape[1] % 2
    tensor = functional.pad(tensor, (0, odd, 0, fill)) if fill or odd else tensor.contiguous()
    if tensor.storage_offset() % 2:
        tensor = tensor.clone()  # pairs can't begin within one
    pairs = tensor.view(torch.int32)
    source = pairs.view(-1, TILE, pairs.shape[1]).transpose(1, 2)
    packed = WEIGHTS.take(tensor.nbytes).view(torch.int32).view(source.shape)
    packed.copy_(source)
    return PreparedWeight(Packed(packed, outputs), packed.nbytes, "tiled")


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


__all__ = ["BITS", "DTYPE", "Dense", "lack", "prepare"]
