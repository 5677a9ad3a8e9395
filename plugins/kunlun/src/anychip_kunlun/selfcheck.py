"""Whether the chip's matrix products are right, asked of each shape of weight when it is loaded. Knows no model.

A known defect: float16 products with very many weight rows give wrong numbers and no error. A service would answer
nonsense, so that the first weight of each shape is multiplied here and on the host.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from anychip_sdk.errors import KernelMissing
from anychip_sdk.registry import dtype_name

#: how far a right product may be off, in roundings of the largest number
ROUNDINGS = 16.0
#: one token is where the defect was seen, several take another way through the chip
TOKENS = (1, 8)
#: of the activations where the weight's are integers; rounding those to 8 bits stays within ROUNDINGS of it
WITH_INTEGERS = torch.bfloat16
#: rows of the weight that are widened at once on the host
SLICE = 16384

Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class LinearCheck:
    """Compares the chip's product with a float32 one on the host, once for each shape and dtype."""

    def __init__(self, product: Product) -> None:
        self._product = product
        self._passed: set[tuple[int, int, torch.dtype]] = set()

    def __call__(self, name: str, weight: torch.Tensor, op: str) -> None:
        """Check a weight [out, in].

        Raises:
            KernelMissing: the product is wrong; with the first wrong column and what to write into the recipe.
        """
        key = (*weight.shape, weight.dtype)
        if key in self._passed:
            return
        dtype = weight.dtype if weight.is_floating_point() else WITH_INTEGERS
        generator = torch.Generator().manual_seed(0)
        for tokens in TOKENS:
            x = torch.randn(tokens, weight.shape[1], generator=generator).to(dtype)
            got = self._product(x.to(weight.device), weight).float().cpu()
            wrong = _first_wrong(got, _on_host(x, weight), dtype)
            if wrong is not None:
                raise _refusal(name, weight, op, tokens, wrong)
        self._passed.add(key)


def _on_host(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    parts = (weight[start : start + SLICE].cpu().float() for start in range(0, weight.shape[0], SLICE))
    return torch.cat([x.float() @ part.T for part in parts], dim=1)


def _first_wrong(got: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> int | None:
    """The first column that rounding does not explain."""
    finite = expected.isfinite()
    largest = expected[finite].abs().max() if bool(finite.any()) else torch.tensor(0.0)
    off = ((got - expected).abs() > ROUNDINGS * torch.finfo(dtype).eps * largest) & finite
    columns = off.any(dim=0).nonzero().flatten()
    return int(columns[0]) if len(columns) else None


def _refusal(name: str, weight: torch.Tensor, op: str, tokens: int, column: int) -> KernelMissing:
    dtype = dtype_name(weight.dtype)
    message = (
        f"backend 'kunlun': op {op}: the chip's {dtype} product of {tokens} tokens with {name} "
        f"{list(weight.shape)} is wrong from column {column} on, compared with the host's in float32"
    )
    if not weight.is_floating_point():
        hint = f"leave it to the reference: ops.overrides: [{{op: {op}, ban: [kunlun]}}]"
        return KernelMissing(message, hint=hint)
    other = "bfloat16" if weight.dtype == torch.float16 else "float32"
    hint = f"compute it in another dtype: ops.overrides: [{{op: {op}, dtype: {dtype}, compute_dtype: {other}}}]"
    return KernelMissing(f"{message} (the known defect of wide float16 products)", hint=hint)


__all__ = ["TOKENS", "LinearCheck"]
