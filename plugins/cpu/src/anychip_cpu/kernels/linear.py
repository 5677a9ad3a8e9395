"""Matrix products and table look-ups. Knows packed and plain weights; knows no layer."""

from __future__ import annotations

import torch
from torch.nn import functional

from anychip_cpu.kernels import packed
from anychip_sdk.step import Step


def linear_packed(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    return packed.multiply(x, weight, bias)


def linear_plain(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """oneDNN and MKL sum 16-bit products in float32 too."""
    return functional.linear(x, weight, bias)


def lm_head_packed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Logits as float32; with 16-bit weights they are rounded to the weights' dtype first.

    oneDNN has no 16-bit product with a float32 result here. One rounding is within the op's error model, but two
    logits closer than that become equal, and argmax then takes the lower id.
    """
    return packed.multiply(x, weight).float()


def lm_head_plain(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.linear(x, weight).float()


def embedding(step: Step, weight: torch.Tensor) -> torch.Tensor:
    if step.embeddings is not None:
        return step.embeddings.to(weight.dtype)
    return weight.index_select(0, step.token_ids)


def select_rows(x: torch.Tensor, step: Step) -> torch.Tensor:
    return x.index_select(0, step.logit_rows)


__all__ = ["embedding", "linear_packed", "linear_plain", "lm_head_packed", "lm_head_plain", "select_rows"]
