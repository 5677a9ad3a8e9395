"""oneDNN's packed weights: packing, multiplying, and whether this torch can. Knows torch's private operators."""

from __future__ import annotations

from functools import lru_cache

import torch

from anychip_sdk.hooks import PreparedWeight

#: what packing is offered for; each is checked on this machine before it is used
CANDIDATES = (torch.bfloat16, torch.float32, torch.float16)
#: packing fixes the blocking; this hint suits both one token and hundreds
ROWS_HINT = 16
#: up to so many rows any number is taken as it is; above, one of so many numbers between a power of two and the next
EXACT_ROWS, ROUNDED_ROWS = 64, 8
OPS = ("linear", "lm_head", "ffn", "mha")


def pack(weight: torch.Tensor) -> torch.Tensor:
    """[out, in] in oneDNN's blocked layout; opaque to everything but `multiply`."""
    packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), ROWS_HINT)
    return packed


def multiply(x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x @ weight.T + bias for x [..., in]."""
    rows = x.shape[:-1]
    if x.dim() == 2 and rows[0] > 1:
        given = rounded(rows[0])
        return _linear(x, packed, bias) if given == rows[0] else _linear(_padded(x, given), packed, bias)[: rows[0]]
    return _linear(_at_least_two(x), packed, bias)[: rows.numel()].view(*rows, packed.shape[0])


def rounded(rows: int) -> int:
    """The number of rows that oneDNN is given for so many.

    It compiles a kernel for each number of rows that it meets and keeps about a megabyte for each: several milliseconds
    at the first prompt of a length, and hundreds of megabytes once prompts of all lengths have come. So there are few.
    """
    if rows <= EXACT_ROWS:
        return rows
    unit = (1 << (rows - 1).bit_length() - 1) // ROUNDED_ROWS
    return -(-rows // unit) * unit


def _padded(x: torch.Tensor, rows: int) -> torch.Tensor:
    """x [less, in] with zeros behind."""
    padded = x.new_empty(rows, x.shape[1])
    padded[: x.shape[0]] = x
    padded[x.shape[0] :] = 0
    return padded


def _at_least_two(x: torch.Tensor) -> torch.Tensor:
    """x as [rows, in] with a companion for a single float32 row, which oneDNN sums in another order than several.

    So a row's result doesn't depend on how many other rows there are. No rows at all get company too.
    """
    x = x.reshape(-1, x.shape[-1])
    if x.shape[0] > EXACT_ROWS:
        return _padded(x, rounded(x.shape[0]))
    if x.shape[0] == 0:
        return x.new_zeros(2, x.shape[1])
    return x.expand(2, -1).contiguous() if x.shape[0] == 1 and x.dtype == torch.float32 else x


def prepare(tensor: torch.Tensor, op: str) -> PreparedWeight | None:
    """The packed form of a matrix; None leaves vectors and other ops' weights as they are."""
    if op not in OPS or tensor.dim() != 2 or tensor.dtype not in usable_dtypes():
        return None
    packed = pack(tensor)
    return PreparedWeight(packed, _nbytes(packed), "blocked")


@lru_cache(maxsize=1)
def usable_dtypes() -> tuple[torch.dtype, ...]:
    """The dtypes for which this torch has the operators and they give the right numbers."""
    return tuple(dtype for dtype in CANDIDATES if _works(dtype))


def _linear(x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    out: torch.Tensor = torch.ops.mkldnn._linear_pointwise.default(x, packed, bias, "none", [], "")
    return out


def _nbytes(packed: torch.Tensor) -> int:
    return int(torch.ops.mkldnn._nbytes(packed))


def _works(dtype: torch.dtype) -> bool:
    """Multiply a small matrix and compare with float64."""
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(rows, 40, generator=generator, dtype=torch.float64).to(dtype) for rows in (3, 48))
    try:
        got = multiply(x, pack(weight))
    except (AttributeError, RuntimeError, TypeError):
        return False  # another torch, or a processor that oneDNN has no such kernel for
    tolerance = 8 * torch.finfo(dtype).eps
    return torch.allclose(got.double(), x.double() @ weight.double().T, rtol=tolerance, atol=8 * tolerance)


__all__ = ["multiply", "pack", "prepare", "rounded", "usable_dtypes"]
